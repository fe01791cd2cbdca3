"""The policy of a step, case by case."""

from tests.support.policy import Policy, rows

WIDE = list(range(100))


def test_a_prompt_is_chunked_by_the_budget_and_then_decodes() -> None:
    policy = Policy(max_step_tokens=16)
    a = policy.add(WIDE[:40], 3)
    assert [rows(s) for s in policy.step().segments] == [(a, 0, 16)]
    assert [rows(s) for s in policy.step().segments] == [(a, 16, 16)]
    last = policy.step()
    assert [(s.start, s.count, s.samples) for s in last.prompts] == [(32, 8, True)]
    decode = policy.step()
    assert [rows(s) for s in decode.decodes] == [(a, 40, 1)]
    assert not decode.prompts
    policy.step()
    assert a not in policy.live
    assert policy.cache.used == 0


def test_decode_rows_come_first_in_every_step_beside_prefills() -> None:
    policy = Policy(num_blocks=200, max_step_tokens=16, max_num_seqs=8)
    a = policy.add([1, 2, 3], 40)
    policy.step()
    for i in range(5):
        policy.add([100 + i] * 60, 2)
    for _ in range(18):
        output = policy.step()
        assert a in [s.sequence for s in output.decodes]
        assert sum(s.count for s in output.segments) <= 16
        assert sum(s.count for s in output.prompts) >= 8


def test_prefills_are_first_come_first_served() -> None:
    policy = Policy(num_blocks=200, max_step_tokens=16)
    a, b = policy.add([1] * 20, 1), policy.add([2] * 20, 1)
    assert [rows(s) for s in policy.step().prompts] == [(a, 0, 16)]
    assert [rows(s) for s in policy.step().prompts] == [(a, 16, 4), (b, 0, 12)]


def test_a_lower_priority_value_goes_first() -> None:
    policy = Policy(max_num_seqs=1)
    policy.add([1], 1)
    late, urgent = policy.add([2], 1), policy.add([3], 1, priority=-1)
    assert [s.sequence for s in policy.step().prompts] == [urgent]
    policy.step()
    assert [s.sequence for s in policy.step().prompts] == [late]


def test_running_sequences_and_budget_are_bounded() -> None:
    policy = Policy(max_num_seqs=3, max_step_tokens=16)
    for i in range(6):
        policy.add([i], 5)
    output = policy.step()
    assert (len(output.admitted), policy.scheduler.running, policy.scheduler.waiting) == (3, 3, 3)


def test_decodes_never_take_more_than_half_a_step() -> None:
    assert Policy(max_num_seqs=64, max_step_tokens=8).scheduler.max_running == 4
    assert Policy(max_num_seqs=64, max_step_tokens=1).scheduler.max_running == 1


def test_a_sequence_keeps_its_slot_while_it_runs() -> None:
    policy = Policy(max_num_seqs=2)
    a = policy.add([1], 3)
    first = policy.step()
    assert first.admitted == (a,)
    slot = a.slot
    policy.step()
    assert a.slot == slot
    policy.step()
    assert policy.scheduler.schedule().released == (slot,)


def test_the_latest_arrival_is_preempted_and_recomputed_by_role() -> None:
    policy = Policy(num_blocks=7, block_size=4, max_num_seqs=2, max_step_tokens=16)
    a, b = policy.add([1] * 7, 12), policy.add([2] * 7, 12)
    policy.step()
    outputs = [policy.step()]
    while not outputs[-1].preempted:
        outputs.append(policy.step())
    assert not b.running
    assert (b.computed, b.table.blocks) == (0, [])
    assert a.running
    made = len(b.output)
    while not b.running:
        outputs.append(policy.step())
    again = outputs[-1]
    assert again.admitted == (b,)
    assert [(s.start, s.end, s.generated, s.samples) for s in again.prompts] == [
        (4, 7, False, False)
    ]
    border = policy.step()
    assert [(s.start, s.end, s.generated, s.samples) for s in border.recomputes] == [
        (7, 7 + made, True, True)
    ]
    assert a not in policy.live
    assert len(b.output) == made + 1


def test_a_sequence_that_is_itself_the_latest_yields() -> None:
    policy = Policy(num_blocks=5, block_size=4, max_num_seqs=2)
    a, b = policy.add([1] * 8, 4), policy.add([2] * 3, 8)
    for _ in range(4):
        policy.step()
    assert a not in policy.live or not b.running
    while policy.live:
        policy.step()
    assert len(b.output) == 8
    policy.scheduler.check_integrity()


def test_abort_frees_blocks_at_once_wherever_the_sequence_is() -> None:
    policy = Policy(max_num_seqs=1, prefix_cache=False)
    a, b = policy.add([1] * 30, 4), policy.add([2] * 8, 4)
    policy.step()
    policy.end(b)
    policy.end(a)
    assert policy.cache.used == 0
    assert not policy.scheduler.schedule().segments
    policy.scheduler.check_integrity()


def test_admission_leaves_a_watermark_for_those_running() -> None:
    policy = Policy(num_blocks=9, block_size=4, max_step_tokens=64)
    a = policy.add([1] * 16, 8)
    b = policy.add([2] * 16, 8)
    assert policy.step().admitted == (a,)  # four blocks left, one of them kept
    assert not b.running
    while a in policy.live:
        policy.step()
    assert policy.step().admitted == (b,)


def test_the_whole_cache_may_go_to_one_sequence() -> None:
    policy = Policy(num_blocks=9, block_size=4, max_step_tokens=64)
    a = policy.add([1] * 31, 1)
    policy.step()
    assert a not in policy.live


def test_a_long_request_at_the_head_is_not_overtaken_for_ever() -> None:
    policy = Policy(num_blocks=17, block_size=4, max_num_seqs=4, max_step_tokens=64)
    policy.add([1] * 8, 4)
    policy.step()
    big = policy.add([2] * 60, 1)
    admitted = []
    for i in range(12):
        policy.add([10 + i] * 4, 4)
        admitted += policy.step().admitted
    assert admitted[0] is big


def test_a_scoring_request_never_reads_the_prefix_cache() -> None:
    policy = Policy(num_blocks=60)
    policy.add(WIDE[:20], 1)
    policy.step()
    policy.step()
    plain = policy.add(WIDE[:20], 1)
    policy.step()
    assert plain.cached == 16
    scoring = policy.add(WIDE[:20], 1, scores=True)
    output = policy.step()
    assert (scoring.cached, output.prompts[0].start) == (0, 0)
    assert all(s.scores for s in output.prompts)
    assert output.prompts[0].logits == 16


def test_a_poisoned_sequence_leaves_nothing_in_the_cache() -> None:
    policy = Policy(num_blocks=60)
    a = policy.add(WIDE[:8], 4)
    policy.step()
    blocks = list(a.table.blocks)
    assert policy.scheduler.discard(a) == blocks
    policy.live.remove(a)
    b = policy.add(WIDE[:8], 1)
    policy.step()
    assert b.cached == 0
    policy.scheduler.check_integrity()
