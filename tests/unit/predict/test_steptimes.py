"""The step-time model: it gives back what was measured, and fills in between."""

from itertools import pairwise

import pytest

from engine.core.schema import StepTime
from engine.steptimes import LaunchLoad, StepTimes, mean_keys, on_line
from tests.support.cores import MACHINE, CoreSpec, manifest, with_catalog

SPEC = CoreSpec(max_model_len=256)


def decode_seconds(rows: float, keys: float) -> float:
    return 0.001 + 0.0005 * rows + 1e-6 * rows * keys


def prefill_seconds(rows: float, keys: float) -> float:
    return 0.002 + 0.0001 * rows + 2e-7 * rows * keys


def mixed_seconds(decode: float, decode_keys: float, prompt: float, prompt_keys: float) -> float:
    """Linear in what a mixed launch carries, as decode and prefill together, with one start."""
    attention = 1e-6 * decode * decode_keys + 2e-7 * prompt * prompt_keys
    return 0.0025 + 0.0005 * decode + 0.0001 * prompt + attention


def time(graph: str, tokens: int, generated: int, context: int) -> StepTime:
    prompt = tokens - generated
    keys = mean_keys(context, prompt)
    if not prompt:
        seconds = decode_seconds(tokens, context)
    elif not generated:
        seconds = prefill_seconds(tokens, keys)
    else:
        seconds = mixed_seconds(generated, context, prompt, keys)
    return StepTime(graph, tokens, generated, context, seconds, seconds, seconds, 6, MACHINE.id)


POINTS = [
    *(("decode-1", 1, 1, context) for context in (64, 256)),
    *(("decode-2", 2, 2, context) for context in (64, 256)),
    *(("decode-4", rows, rows, context) for rows in (3, 4) for context in (64, 256)),
    *(("prefill-8", rows, 0, context) for rows in (1, 8) for context in (rows, 200)),
    *(("prefill-32", rows, 0, context) for rows in (9, 32) for context in (rows, 200)),
    *(("mixed-8", tokens, 1, 64) for tokens in (2, 8)),
    *(("mixed-32", tokens, d, 64) for tokens in (9, 32) for d in (1, 4)),
]
TIMES = tuple(time(*point) for point in POINTS)
CATALOG = with_catalog(manifest(SPEC), machines=(MACHINE,), step_times=TIMES).catalog
MODEL = StepTimes(CATALOG)


def load(graph: str, decode: int, decode_keys: float, prompt: int, keys: float) -> LaunchLoad:
    return LaunchLoad(graph, decode, decode * decode_keys, prompt, prompt * keys)


@pytest.mark.parametrize("point", POINTS)
def test_measured_points_come_back(point: tuple[str, int, int, int]) -> None:
    graph, tokens, generated, context = point
    prompt = tokens - generated
    keys = mean_keys(context, prompt)
    expected = next(
        t.seconds for t in TIMES if (t.graph, t.tokens, t.generated, t.context) == point
    )
    assert MODEL.seconds(load(graph, generated, context, prompt, keys)) == pytest.approx(expected)


@pytest.mark.parametrize("rows", [3, 4])
@pytest.mark.parametrize("keys", [1, 64, 100, 256, 1000])
def test_decode_in_between_and_beyond(rows: int, keys: int) -> None:
    found = MODEL.seconds(load("decode-4", rows, keys, 0, 0))
    assert found == pytest.approx(decode_seconds(rows, keys))


@pytest.mark.parametrize("rows", [9, 20, 32])
@pytest.mark.parametrize("keys", [5, 60, 150, 900])
def test_prefill_in_between_and_beyond(rows: int, keys: int) -> None:
    """Seconds are bilinear in rows and keys, so the model is exact at the levels, close between."""
    found = MODEL.seconds(load("prefill-32", 0, 0, rows, keys))
    assert found == pytest.approx(prefill_seconds(rows, keys), rel=1e-9 if rows != 20 else 0.01)


@pytest.mark.parametrize("decode", [1, 2, 4])
@pytest.mark.parametrize("prompt", [6, 20, 28])
@pytest.mark.parametrize("keys", [(30, 10), (64, 40), (250, 200)])
def test_mixed_launches_add_attention_of_both_sorts(
    decode: int, prompt: int, keys: tuple[int, int]
) -> None:
    found = MODEL.seconds(load("mixed-32", decode, keys[0], prompt, keys[1]))
    assert found == pytest.approx(mixed_seconds(decode, keys[0], prompt, keys[1]), rel=0.02)


def test_a_graph_of_one_point_is_flat_and_positive() -> None:
    one = with_catalog(
        manifest(SPEC), machines=(MACHINE,), step_times=(time("decode-2", 2, 2, 64),)
    )
    model = StepTimes(one.catalog)
    found = {model.seconds(load("decode-2", rows, keys, 0, 0)) for rows, keys in ((2, 64), (1, 9))}
    assert found == {decode_seconds(2, 64)}
    assert MODEL.seconds(load("prefill-8", 0, 0, 1, 0.001)) > 0


def test_what_was_not_measured_is_named() -> None:
    assert MODEL.missing(CATALOG.graphs) == []
    some = with_catalog(manifest(SPEC), machines=(MACHINE,), step_times=TIMES[:4]).catalog
    missing = StepTimes(some).missing(some.graphs)
    assert missing == ["decode-4", "prefill-8", "prefill-32", "mixed-8", "mixed-32"]


def test_lines_are_piecewise_and_go_on_at_both_ends() -> None:
    points = [(1.0, 10.0), (2.0, 20.0), (4.0, 100.0)]
    found = [on_line(points, x) for x in (0.0, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0)]
    assert found == [0.0, 10.0, 15.0, 20.0, 60.0, 100.0, 140.0]
    assert all(a <= b for a, b in pairwise(found))
    assert on_line([(3.0, 7.0)], 100.0) == 7.0
