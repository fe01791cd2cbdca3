"""The reference sampler: known values of the generator, and what each parameter does."""

from collections import Counter

import numpy as np
import pytest
from numpy.typing import NDArray

from engine.device.base import INVALID, SampleBatch, Samples
from engine.device.reference.philox import philox, uniform
from engine.device.reference.sampler import ReferenceSampler
from engine.types import SamplingParams

VOCAB = 6
LOGITS = np.array([[1.0, 3.0, 2.0, 3.0, -1.0, 0.5, 99.0, 99.0]], np.float32)  # two padded ids


def sampler(params: SamplingParams, logits: NDArray[np.float32] = LOGITS) -> ReferenceSampler:
    result = ReferenceSampler(VOCAB, 2, lambda: logits)
    result.set(1, params, [1], [4], [])
    return result


def sample(
    s: ReferenceSampler, position: int = 0, forbid: bool = False, top_n: int = -1
) -> Samples:
    one = np.ones(1, np.int32)
    return s.sample(
        SampleBatch(0 * one, one, position * one, np.array([forbid], np.uint8), top_n * one)
    )


def draw(params: SamplingParams, position: int = 0, forbid: bool = False) -> int:
    return int(sample(sampler(params), position, forbid).tokens[0])


def drawn(params: SamplingParams, count: int = 400) -> Counter[int]:
    return Counter(draw(params, position) for position in range(count))


def params(**changes: object) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 10, "seed": 7, **changes})  # type: ignore[arg-type]


def test_philox_known_answers() -> None:
    """From the known-answer file of the authors' Random123 library (kat_vectors)."""
    ones = 0xFFFFFFFF
    assert philox((0, 0, 0, 0), (0, 0)) == (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)
    assert philox((ones,) * 4, (ones,) * 2) == (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)


def test_uniform_is_uniform_and_depends_on_both() -> None:
    values = [uniform(seed, position) for seed in range(20) for position in range(50)]
    assert len(set(values)) == len(values)
    assert min(values) >= 0 and max(values) < 1
    assert abs(np.mean(values) - 0.5) < 0.03
    assert uniform(2**64 + 5, 3) == uniform(5, 3)


def test_greedy_takes_the_lowest_of_equals_and_no_padding() -> None:
    assert draw(params(temperature=0.0)) == 1
    assert draw(params(temperature=0.0), forbid=True) == 3
    assert draw(params(temperature=0.0, logit_bias={0: 5.0})) == 0


def test_distribution() -> None:
    counts = drawn(params(), 3000)
    z = np.exp(LOGITS[0, :VOCAB].astype(np.float64))
    expected = z / z.sum()
    found = np.array([counts[token] for token in range(VOCAB)]) / 3000
    np.testing.assert_allclose(found, expected, atol=0.03)


def test_limits() -> None:
    assert set(drawn(params(top_k=1))) == {1}
    assert set(drawn(params(top_k=2))) == {1, 3}
    assert set(drawn(params(top_p=0.01))) == {1}
    assert set(drawn(params(top_p=0.5))) == {1, 3}
    assert set(drawn(params(min_p=0.3))) == {1, 2, 3}
    assert set(drawn(params(min_p=1.0))) == {1, 3}
    assert set(drawn(params(top_k=4, top_p=0.99), 1500)) == {0, 1, 2, 3}


def test_penalties_follow_the_history() -> None:
    s = sampler(params(temperature=0.0, frequency_penalty=0.4))
    tokens = [int(sample(s).tokens[0]) for _ in range(6)]
    assert tokens == [1, 3, 1, 3, 1, 3]
    assert draw(params(temperature=0.0, presence_penalty=2.0)) == 1
    # The prompt holds id 4 alone: only the repetition penalty looks at it.
    s = sampler(params(temperature=0.0, repetition_penalty=2.0))
    assert [int(sample(s).tokens[0]) for _ in range(3)] == [1, 3, 2]
    negative = np.full((1, 8), -1.0, np.float32)
    negative[0, 4] = -0.9
    s = sampler(params(temperature=0.0, repetition_penalty=2.0), negative)
    assert int(sample(s).tokens[0]) == 0


def test_log_probabilities_are_those_of_the_raw_logits() -> None:
    s = sampler(params(temperature=0.0, logit_bias={0: 50.0}))
    found = sample(s, top_n=3)
    z = LOGITS[0, :VOCAB].astype(np.float64)
    logprobs = z - np.log(np.exp(z).sum())
    assert found.tokens[0] == 0
    assert found.logprobs[0] == pytest.approx(logprobs[0], abs=1e-6)
    assert found.top_ids[0, :4].tolist() == [1, 3, 2, -1]
    np.testing.assert_allclose(found.top_logprobs[0, :3], logprobs[[1, 3, 2]], atol=1e-6)
    assert np.isnan(found.top_logprobs[0, 3:]).all()


def test_scores() -> None:
    z = np.zeros(1, np.int32)
    found = sampler(params()).score(z, z + 4, z + 1)
    assert found.tokens[0] == 4
    assert found.logprobs[0] < found.top_logprobs[0, 0]
    assert found.top_ids[0, :2].tolist() == [1, -1]


def test_rows_that_cannot_be_drawn() -> None:
    for bad in (np.nan, np.inf):
        logits = LOGITS.copy()
        logits[0, 2] = bad
        s = sampler(params(), logits)
        assert sample(s).tokens[0] == INVALID
    banned = params(temperature=0.0, logit_bias={token: float("-inf") for token in range(VOCAB)})
    assert draw(banned) == INVALID
    s = sampler(params())
    s.clear(1)
    with pytest.raises(ValueError, match="slot 1 is not set"):
        sample(s)
