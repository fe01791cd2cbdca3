"""Random traffic: what must hold in every step, whatever arrives, leaves or runs out."""

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.batch.plan import Planner
from engine.schedule.output import SchedulerOutput
from tests.support.policy import Policy
from tests.support.scripted import synthetic_graphs

REQUEST = st.tuples(
    st.integers(0, 30),  # steps before it arrives
    st.integers(1, 40),  # prompt
    st.integers(0, 20),  # max_tokens
    st.integers(0, 2),  # priority
    st.integers(0, 2),  # which prompt head it shares
    st.one_of(st.none(), st.integers(0, 40)),  # step of its abort
    st.booleans(),  # prompt log probabilities
)


def check_step(policy: Policy, output: SchedulerOutput) -> None:
    segments = output.segments
    assert sum(s.count for s in segments) <= policy.max_step_tokens
    assert len({s.sequence for s in segments}) == len(segments)
    assert policy.scheduler.running <= policy.scheduler.max_running
    for s in segments:
        prompt = len(s.sequence.prompt)
        assert s.count >= 1
        assert s.start == s.sequence.computed
        assert s.end <= (s.sequence.known if s.generated else prompt)
        assert s.generated == (s.start >= prompt)
        assert s.samples == (s.end == s.sequence.known and s.sequence.left > 0)
        assert len(s.sequence.table.blocks) * policy.block_size >= s.end
    assert all(s.count == 1 and s.samples for s in output.decodes)
    decoding = {s.sequence for s in output.decodes}
    missed = [s for s in policy.live if s.running and s.decoding and s not in decoding]
    assert not missed


@settings(max_examples=80, deadline=None)
@given(
    requests=st.lists(REQUEST, min_size=1, max_size=12),
    blocks=st.integers(17, 40),
    step_tokens=st.integers(1, 40),
    seqs=st.integers(1, 6),
    prefix=st.booleans(),
    mixed=st.booleans(),
)
def test_everything_is_served_and_nothing_leaks(
    requests: list[tuple[int, int, int, int, int, int | None, bool]],
    blocks: int,
    step_tokens: int,
    seqs: int,
    prefix: bool,
    mixed: bool,
) -> None:
    policy = Policy(blocks, 4, seqs, step_tokens, prefix)
    planner = Planner(synthetic_graphs(seqs, step_tokens, mixed, logits=4))
    pending = sorted(requests, key=lambda r: r[0])
    aborts = {}
    for step in range(3000):
        while pending and pending[0][0] <= step:
            _, length, tokens, priority, head, abort, scores = pending.pop(0)
            prompt = [head] * 20 + [step] * 20
            sequence = policy.add(prompt[:length], tokens, priority, scores)
            aborts[sequence] = abort
        for sequence in [s for s in policy.live if aborts[s] == step]:
            policy.end(sequence)
        output = policy.scheduler.schedule()
        check_step(policy, output)
        assert output.segments or not policy.live, "no progress"
        planner.plan(output)
        policy.finish(output)
        policy.scheduler.check_integrity()
        if not policy.live and not pending:
            break
    assert not policy.live and not pending
    assert policy.cache.used == 0
