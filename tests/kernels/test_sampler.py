"""The native sampler: against the numpy oracle, its distribution, and its invariances."""

from dataclasses import dataclass
from typing import Any

import flare_cpu
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from engine.device.base import SampleBatch, Samples
from engine.device.cpu.sampler import CpuSampler
from engine.device.reference.sampler import ReferenceSampler
from engine.types import SamplingParams
from tests.support.native import ISAS

F32 = NDArray[np.float32]
WIDTH_PADDING = 15


@dataclass
class Rig:
    """Both samplers over one array of logits; padding columns hold the highest values."""

    logits: F32
    vocab: int
    native: CpuSampler
    reference: ReferenceSampler

    @classmethod
    def make(cls, rows: F32, isa: str = ISAS[-1], threads: int = 1, slots: int = 64) -> "Rig":
        vocab = rows.shape[1]
        logits = np.full((len(rows), vocab + WIDTH_PADDING), 1e9, np.float32)
        logits[:, :vocab] = rows
        pool = flare_cpu.ThreadPool(threads)
        native = CpuSampler(pool, isa, vocab, logits.shape[1], slots, lambda: logits)
        return cls(logits, vocab, native, ReferenceSampler(vocab, slots, lambda: logits))

    def set(
        self, slot: int, *, stop: Any = (), prompt: Any = (), output: Any = (), **p: Any
    ) -> None:
        params = SamplingParams(**{"max_tokens": 8, **p})
        for sampler in (self.native, self.reference):
            sampler.set(slot, params, tuple(stop), tuple(prompt), tuple(output))


def batch(
    rows: Any,
    slots: Any = None,
    positions: Any = 7,
    forbid: int = 0,
    top_n: int = -1,
    **masks: Any,
) -> SampleBatch:
    rows = np.asarray(rows, np.int32)
    fill = np.zeros(len(rows), np.int32)
    return SampleBatch(
        rows,
        fill if slots is None else np.asarray(slots, np.int32),
        fill + np.asarray(positions, np.int32),
        (fill + forbid).astype(np.uint8),
        fill + top_n,
        **masks,
    )


def gaussian(rows: int, vocab: int, seed: int = 0, scale: float = 3.0) -> F32:
    return (np.random.default_rng(seed).standard_normal((rows, vocab)) * scale).astype(np.float32)


PARAMETERS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 0.7, "top_k": 1},
    {"temperature": 1.3, "top_k": 40},
    {"temperature": 1.0, "top_k": 1000000},
    {"temperature": 1.0, "top_p": 0.9},
    {"temperature": 2.5, "top_p": 0.999},
    {"temperature": 1.0, "top_p": 0.0},
    {"temperature": 1.0, "min_p": 0.05},
    {"temperature": 1.0, "min_p": 1.0},
    {"temperature": 0.8, "top_k": 50, "top_p": 0.8, "min_p": 0.02},
    {"temperature": 1e-9},
    {"temperature": 1.0, "repetition_penalty": 1.4, "prompt": range(50), "output": [3, 3, 60]},
    {"temperature": 0.0, "frequency_penalty": 1.5, "presence_penalty": 0.7, "output": [1, 1, 2]},
    {"temperature": 0.9, "logit_bias": {5: 90.0, 6: 90.5, 7: -100.0}},
]


@pytest.mark.parametrize("parameters", PARAMETERS, ids=str)
@pytest.mark.parametrize("vocab", [70, 1000, 5000])
def test_agrees_with_the_oracle(parameters: dict[str, Any], vocab: int) -> None:
    count = 12
    rig = Rig.make(gaussian(count, vocab, vocab))
    for slot in range(count):
        rig.set(slot, seed=slot * 977 + 1, stop=[0, 9], **parameters)
    for step in range(3):
        request = batch(range(count), range(count), 7 + step, forbid=step % 2, top_n=5)
        found, expected = rig.native.sample(request), rig.reference.sample(request)
        np.testing.assert_array_equal(found.tokens, expected.tokens)
        np.testing.assert_allclose(found.logprobs, expected.logprobs, atol=2e-5)
        np.testing.assert_array_equal(found.top_ids[:, :5], expected.top_ids[:, :5])
        np.testing.assert_allclose(
            found.top_logprobs[:, :5], expected.top_logprobs[:, :5], atol=2e-5
        )


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_agrees_with_the_oracle_on_coarse_logits(data: st.DataObject) -> None:
    """Few distinct values: ties everywhere, also at the borders of top_k and top_p."""
    vocab = data.draw(st.integers(1, 300))
    seed = data.draw(st.integers(0, 2**64 - 1))
    rows = np.random.default_rng(seed).integers(-3, 3, (2, vocab)).astype(np.float32)
    rig = Rig.make(rows)
    ids = st.lists(st.integers(0, vocab - 1), max_size=5)
    rig.set(
        1,
        seed=seed,
        temperature=data.draw(st.sampled_from([0.0, 0.5, 1.0, 4.0])),
        top_k=data.draw(st.integers(0, vocab + 1)),
        top_p=data.draw(st.sampled_from([0.01, 0.31, 0.77, 1.0])),
        min_p=data.draw(st.sampled_from([0.0, 0.03, 0.4])),
        frequency_penalty=data.draw(st.sampled_from([0.0, 1.0])),
        repetition_penalty=data.draw(st.sampled_from([1.0, 1.5])),
        prompt=data.draw(ids),
        output=data.draw(ids),
        stop=data.draw(ids),
    )
    request = batch([1, 0], [1, 1], [3, 4], forbid=data.draw(st.integers(0, 1)))
    np.testing.assert_array_equal(
        rig.native.sample(request).tokens, rig.reference.sample(request).tokens
    )


def masks_of(allowed: NDArray[np.bool_]) -> NDArray[np.uint32]:
    """Pack [rows, ids] into words, lowest bit first; bits behind the vocabulary are set."""
    rows, vocab = allowed.shape
    padded = np.ones((rows, -(-vocab // 32) * 32), np.uint8)
    padded[:, :vocab] = allowed
    return np.packbits(padded, axis=1, bitorder="little").view(np.uint32)


@pytest.mark.parametrize("parameters", PARAMETERS, ids=str)
@pytest.mark.parametrize("vocab", [70, 1000])
@pytest.mark.parametrize("share", [0.01, 0.5, 0.99])
def test_masked_rows_agree_with_the_oracle(
    parameters: dict[str, Any], vocab: int, share: float
) -> None:
    count = 8
    rig = Rig.make(gaussian(count, vocab, vocab))
    for slot in range(count):
        rig.set(slot, seed=slot * 977 + 1, stop=[0, 9], **parameters)
    allowed = np.random.default_rng(vocab).random((count, vocab)) < share
    allowed[:, 11] = True
    rows = np.array([3, -1, 0, 1, 2, -1, 7, 5], np.int32)
    for step in range(3):
        request = batch(
            range(count),
            range(count),
            7 + step,
            forbid=step % 2,
            top_n=5,
            masks=masks_of(allowed),
            mask_rows=rows,
        )
        found, expected = rig.native.sample(request), rig.reference.sample(request)
        np.testing.assert_array_equal(found.tokens, expected.tokens)
        for token, row in zip(found.tokens, rows, strict=True):
            assert row < 0 or allowed[row, token]
        # Log probabilities are those of the raw logits, masked or not.
        np.testing.assert_allclose(found.logprobs, expected.logprobs, atol=2e-5)
        np.testing.assert_array_equal(found.top_ids[:, :5], expected.top_ids[:, :5])


def test_a_mask_leaves_the_rows_beside_it_alone() -> None:
    rig = Rig.make(gaussian(2, 1000))
    for slot in range(2):
        rig.set(slot, seed=slot)
    plain = rig.native.sample(batch([0, 1], [0, 1], top_n=3))
    none = masks_of(np.zeros((1, 1000), bool))
    rows = np.array([0, -1], np.int32)
    masked = rig.native.sample(batch([0, 1], [0, 1], top_n=3, masks=none, mask_rows=rows))
    assert masked.tokens.tolist() == [-1, plain.tokens[1]]
    np.testing.assert_array_equal(masked.top_logprobs[1], plain.top_logprobs[1])


def test_masks_are_checked() -> None:
    rig = Rig.make(gaussian(1, 1000))
    rig.set(0)
    row = np.zeros(1, np.int32)
    with pytest.raises(ValueError, match="masks must be 32 words wide, not 31"):
        rig.native.sample(batch([0], masks=np.zeros((1, 31), np.uint32), mask_rows=row))
    with pytest.raises(ValueError, match="mask_rows must be -1 to 0"):
        rig.native.sample(batch([0], masks=np.zeros((1, 32), np.uint32), mask_rows=row + 1))
    with pytest.raises(ValueError, match="masks need mask_rows"):
        rig.native.sample(batch([0], masks=np.zeros((1, 32), np.uint32)))


def equal(a: Samples, b: Samples) -> None:
    for name in ("tokens", "logprobs", "top_ids", "top_logprobs"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name))


def drawn(rig: Rig, count: int, request: SampleBatch) -> Samples:
    for slot in range(count):
        rig.native.set(slot, SamplingParams(4, seed=slot, **MIXED[slot % len(MIXED)]), (), (), ())
    return rig.native.sample(request)


MIXED: list[dict[str, Any]] = [
    {"temperature": 1.0},
    {"temperature": 0.8, "top_k": 30},
    {"temperature": 0.0},
    {"temperature": 1.2, "top_p": 0.9, "frequency_penalty": 0.5},
    {"temperature": 1.0, "min_p": 0.1},
]


def test_the_same_bits_on_every_path_and_thread_count() -> None:
    rows, count = gaussian(16, 5000), 16
    request = batch(range(count), range(count), range(count), top_n=20)
    first = drawn(Rig.make(rows), count, request)
    for isa in ISAS:
        equal(drawn(Rig.make(rows, isa), count, request), first)
    for threads in (2, 5):
        equal(drawn(Rig.make(rows, threads=threads), count, request), first)


def test_a_row_does_not_depend_on_its_mates() -> None:
    rows, count = gaussian(16, 3000), 16
    together = drawn(Rig.make(rows), count, batch(range(count), range(count), range(count)))
    for i in range(count):
        alone = drawn(Rig.make(rows), count, batch([i], [i], [i]))
        assert alone.tokens[0] == together.tokens[i]
    order = np.random.default_rng(0).permutation(count)
    shuffled = drawn(Rig.make(rows), count, batch(order, order, order))
    np.testing.assert_array_equal(shuffled.tokens, together.tokens[order])


def test_several_slots_may_draw_from_one_row() -> None:
    rig = Rig.make(gaussian(1, 500))
    for slot in range(8):
        rig.set(slot, seed=slot, frequency_penalty=1.0, output=[slot])
    request = batch([0] * 8, range(8))
    before = rig.logits.copy()
    np.testing.assert_array_equal(
        rig.native.sample(request).tokens, rig.reference.sample(request).tokens
    )
    np.testing.assert_array_equal(rig.logits, before)


@pytest.mark.parametrize(
    "parameters",
    [{}, {"top_k": 5}, {"top_p": 0.8}, {"min_p": 0.2}, {"temperature": 0.6}],
    ids=str,
)
def test_the_distribution(parameters: dict[str, Any]) -> None:
    """Chi-square of 6000 draws at as many positions against the exact probabilities."""
    logits = np.array([2.0, 1.0, 0.0, 1.5, -1.0, 0.5, -3.0, 1.0], np.float32)
    rig, draws = Rig.make(logits[None]), 6000
    rig.set(0, seed=12345, **parameters)
    tokens = np.concatenate(
        [
            rig.native.sample(batch([0] * 100, None, range(i, i + 100))).tokens
            for i in range(0, draws, 100)
        ]
    )
    p = np.exp(logits.astype(np.float64) / parameters.get("temperature", 1.0))
    p /= p.sum()
    order = np.argsort(-p, kind="stable")
    keep = np.zeros(len(p), bool)
    keep[order[: parameters.get("top_k", len(p))]] = True
    needed = np.searchsorted(np.cumsum(p[order]), parameters.get("top_p", 1.0) - 1e-9) + 1
    keep[order[needed:]] = False
    keep &= p >= parameters.get("min_p", 0.0) * p.max()
    expected = np.where(keep, p, 0) / p[keep].sum() * draws
    counts = np.bincount(tokens, minlength=len(p))
    assert not counts[~keep].any()
    chi = ((counts - expected)[keep] ** 2 / expected[keep]).sum()
    assert chi < 26  # 7 degrees of freedom: p < 0.0005


def test_seeds_and_positions_choose_the_draw() -> None:
    rig = Rig.make(gaussian(1, 5000, scale=0.1))
    found = set()
    for seed in (0, 1, 2**63, 2**64 - 1):
        rig.set(0, seed=seed)
        tokens = rig.native.sample(batch([0] * 4, None, range(4))).tokens
        again = rig.native.sample(batch([0] * 4, None, range(4))).tokens
        np.testing.assert_array_equal(tokens, again)
        found.update(tokens.tolist())
    assert len(found) >= 15


def test_padding_ids_do_not_exist() -> None:
    rig = Rig.make(gaussian(4, 100))
    for slot, temperature in enumerate((0.0, 1.0, 50.0, 1.0)):
        rig.set(slot, temperature=temperature, top_k=10 if slot == 3 else 0)
    samples = rig.native.sample(batch(range(4), range(4), top_n=20))
    assert (samples.tokens < 100).all()
    assert (samples.top_ids < 100).all()
    exact = rig.logits[:, :100].astype(np.float64)
    log_sum = np.log(np.exp(exact).sum(axis=1))
    best = np.sort(exact, axis=1)[:, ::-1][:, :20] - log_sum[:, None]
    np.testing.assert_allclose(samples.top_logprobs, best, atol=1e-5)


def test_fewer_ids_than_alternatives() -> None:
    rig = Rig.make(gaussian(1, 3))
    rig.set(0)
    samples = rig.native.sample(batch([0], top_n=20))
    assert sorted(samples.top_ids[0, :3].tolist()) == [0, 1, 2]
    assert (samples.top_ids[0, 3:] == -1).all()


def test_greedy_ties_go_to_the_lowest_id() -> None:
    rows = np.zeros((3, 200), np.float32)
    rows[1, [150, 77, 191]] = 4
    rows[2] = -5
    rig = Rig.make(rows)
    rig.set(0, temperature=0.0)
    for slot in (1, 2):
        rig.set(slot, temperature=0.0)
    assert rig.native.sample(batch(range(3), range(3))).tokens.tolist() == [0, 77, 0]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("at", [0, 63, 130])
def test_a_row_that_is_not_finite_fails_alone(value: float, temperature: float, at: int) -> None:
    rows = gaussian(3, 131)
    rows[1, at] = value
    rig = Rig.make(rows, threads=2)
    for slot in range(3):
        rig.set(slot, temperature=temperature, frequency_penalty=0.1)
    samples = rig.native.sample(batch(range(3), range(3), top_n=2))
    assert samples.tokens[1] == -1
    assert np.isnan(samples.logprobs[1])
    assert (samples.tokens[[0, 2]] >= 0).all()
    assert np.isfinite(samples.logprobs[[0, 2]]).all()


def test_forbidding_every_id_leaves_none() -> None:
    rig = Rig.make(gaussian(1, 4))
    rig.set(0, stop=range(4))
    assert rig.native.sample(batch([0], forbid=1)).tokens[0] == -1
    assert rig.native.sample(batch([0], forbid=0)).tokens[0] >= 0


def test_end_tokens_outside_the_vocabulary_are_harmless() -> None:
    rows = np.zeros((1, 10), np.float32)
    rows[0, 4] = 9
    rig = Rig.make(rows)
    rig.native.set(0, SamplingParams(4, temperature=0.0), (4, 10, 99999, -3), (), ())
    assert rig.native.sample(batch([0], forbid=1)).tokens[0] == 0


def test_one_slot_draws_in_order_and_rewinds() -> None:
    """Adjacent entries of a slot see each other's tokens, as a verify step needs."""
    rows = gaussian(4, 50, scale=0.5)
    rig = Rig.make(rows)
    rig.set(0, temperature=0.0, frequency_penalty=50.0)
    together = rig.native.sample(batch(range(4), [0] * 4, range(4))).tokens
    assert len(set(together.tolist())) == 4
    singly = [rig.reference.sample(batch([i], [0], i)).tokens[0] for i in range(4)]
    np.testing.assert_array_equal(together, singly)
    rig.native.rewind(0, 3)
    after = rig.native.sample(batch(range(1, 4), [0] * 3, range(1, 4))).tokens
    np.testing.assert_array_equal(after, together[1:])
    with pytest.raises(ValueError, match="cannot take back 5 tokens of 4"):
        rig.native.rewind(0, 5)


def test_history_grows_without_bound() -> None:
    rig = Rig.make(np.zeros((1, 3000), np.float32))
    rig.set(0, temperature=0.0, presence_penalty=1.0)
    drawn = [int(rig.native.sample(batch([0], None, i)).tokens[0]) for i in range(1500)]
    assert drawn == list(range(1500))


def test_score_gives_raw_log_probabilities() -> None:
    rows = gaussian(6, 777)
    rig = Rig.make(rows, threads=2)
    wanted = np.array([5, 0, 3], np.int32)
    targets = np.array([776, 0, 9], np.int32)
    top_n = np.array([0, 4, -1], np.int32)
    found = rig.native.score(wanted, targets, top_n)
    exact = rows[wanted].astype(np.float64)
    exact -= np.log(np.exp(exact).sum(axis=1, keepdims=True))
    np.testing.assert_allclose(found.logprobs[:2], exact[[0, 1], targets[:2]], atol=1e-5)
    assert np.isnan(found.logprobs[2])
    np.testing.assert_array_equal(found.top_ids[1, :4], np.argsort(-rows[0])[:4])
    assert (found.top_ids[[0, 2]] == -1).all()


BAD_PARAMETERS: list[tuple[dict[str, Any], str]] = [
    ({"temperature": -1.0}, "temperature"),
    ({"temperature": float("nan")}, "temperature"),
    ({"temperature": float("inf")}, "temperature"),
    ({"top_p": 1.5}, "top_p"),
    ({"top_p": float("nan")}, "top_p"),
    ({"min_p": -0.1}, "min_p"),
    ({"top_k": -1}, "top_k"),
    ({"repetition_penalty": 0.0}, "repetition_penalty"),
    ({"presence_penalty": float("nan")}, "presence_penalty"),
    ({"logit_bias": {20: 1.0}}, "bias_ids"),
    ({"logit_bias": {-1: 1.0}}, "bias_ids"),
    ({"logit_bias": {1: float("nan")}}, "bias"),
]


@pytest.mark.parametrize(("parameters", "message"), BAD_PARAMETERS, ids=str)
def test_bad_parameters(parameters: dict[str, Any], message: str) -> None:
    rig = Rig.make(gaussian(1, 20))
    with pytest.raises(ValueError, match=message):
        rig.native.set(0, SamplingParams(**{"max_tokens": 4, **parameters}), (), (), ())
    with pytest.raises(ValueError, match="slot 0 is not set"):
        rig.native.sample(batch([0]))


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (batch([1]), r"rows\[0\] = 1"),
        (batch([-1]), r"rows\[0\] = -1"),
        (batch([0], [64]), "slot must be 0 to 63"),
        (batch([0], [-1]), "slot must be"),
        (batch([0], [5]), "slot 5 is not set"),
        (batch([0], positions=-1), "positions"),
        (batch([0], top_n=21), "top_n"),
        (batch([0], top_n=-2), "top_n"),
        (batch([0, 0, 0], [0, 1, 0]), "entries of slot 0 must be adjacent"),
    ],
)
def test_bad_batches(request_: SampleBatch, message: str) -> None:
    rig = Rig.make(gaussian(1, 20))
    rig.set(0)
    rig.set(1)
    with pytest.raises(ValueError, match=message):
        rig.native.sample(request_)


def test_bad_histories_and_shapes() -> None:
    rig = Rig.make(gaussian(1, 20))
    for prompt, output in (((20,), ()), ((), (-1,))):
        with pytest.raises(ValueError, match="_ids holds"):
            rig.native.set(0, SamplingParams(4), (), prompt, output)
    pool = flare_cpu.ThreadPool(1)
    for sizes in ((0, 16, 4), (16, 8, 4), (16, 16, 0)):
        with pytest.raises(ValueError, match="must"):
            flare_cpu.Sampler(pool, ISAS[-1], *sizes)
    narrow = CpuSampler(pool, ISAS[-1], 20, 32, 1, lambda: np.zeros((1, 16), np.float32))
    narrow.set(0, SamplingParams(4), (), (), ())
    with pytest.raises(ValueError, match="logits must be 32 wide"):
        narrow.sample(batch([0]))
