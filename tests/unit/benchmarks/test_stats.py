"""Percentiles, the client's events, the arrival's gaps, growth's steady rate, charts."""

import xml.etree.ElementTree as ET
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from app.bench.client import Client, Reply, ReplyError
from app.bench.stats import advantage, best, gaps, percentile
from benchmarks.chart import Chart, round_up, svg
from benchmarks.growth import Point, Trace, charts, medians, shapes_of, steady_rate
from benchmarks.serving.scenarios import arrival_figures
from tests.support.loopback import loopback, streamed

finite = st.floats(-1e6, 1e6)


@given(st.lists(finite, min_size=1), st.floats(0, 100))
def test_a_percentile_lies_between_the_extremes(values: list[float], percent: float) -> None:
    assert min(values) <= percentile(values, percent) <= max(values)
    assert percentile(values, 0) == min(values)
    assert percentile(values, 100) == max(values)


def test_percentiles_interpolate() -> None:
    assert percentile([4, 1, 3, 2], 50) == 2.5
    assert percentile([0, 10], 99) == pytest.approx(9.9)


@pytest.mark.parametrize(("values", "percent"), [([], 50), ([1.0], 101), ([1.0], -1)])
def test_percentiles_refuse_nonsense(values: list[float], percent: float) -> None:
    with pytest.raises(ValueError, match=r"no values|not a percentage"):
        percentile(values, percent)


def test_advantage_and_best_follow_the_direction() -> None:
    assert advantage(20, 10, True) == 2
    assert advantage(20, 10, False) == 0.5
    assert best([3, 1, 2], True) == 3
    assert best([3, 1, 2], False) == 1
    assert gaps([1, 3, 6]) == [2, 3]


def test_arrival_counts_only_what_overlaps_the_wait() -> None:
    arrived = Reply(sent=10.0, arrivals=[12.0, 12.1])
    stream = Reply(sent=0.0, arrivals=[9.0, 9.5, 11.0, 13.0, 20.0])
    figures = arrival_figures([stream], arrived)
    assert figures["arrival_ttft_s"] == 2.0
    # The gaps 9.5 to 11 and 11 to 13 overlap the wait; 9 to 9.5 and 13 to 20 do not.
    assert figures["arrival_gap_ms"] == pytest.approx(1000 * percentile([1.5, 2.0], 99))
    assert figures["arrival_tok_s"] == 0.5  # the token at 11 alone


@asynccontextmanager
async def client(body: bytes, status: int = 200) -> AsyncIterator[Client]:
    """A client of a server that answers with ``body``, its lines in pieces."""

    async def respond(request: web.Request) -> web.StreamResponse:
        parts = [body[start : start + 7] for start in range(0, len(body), 7)]
        return await streamed(request, parts, status)

    async with loopback(respond) as url, Client(f"{url}/v1", {"model": "m"}, 5) as one:
        yield one


async def test_the_client_counts_tokens_by_usage_and_skips_the_final_chunk() -> None:
    body = (
        b'data: {"choices": [{"text": "a"}]}\n\ndata: {"choices": [{"text": ""}]}\n\n'
        b'data: {"choices": [{"text": "", "finish_reason": "length"}]}\n\n'
        b'data: {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 7}}\n\n'
        b"data: [DONE]\n\n"
    )
    async with client(body) as c:
        reply = await c.complete("x", 2)
    assert (len(reply.arrivals), reply.tokens, reply.prompt_tokens, reply.text) == (2, 7, 5, "a")
    assert reply.first_token_s >= 0


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (b"busy", 503, "HTTP 503: busy"),
        (b'data: {"error": "broken"}\n\n', 200, "broken"),
        (b"data: [DONE]\n\n", 200, "no token"),
        (b"data: {broken\n\n", 200, "DecodeError"),
    ],
)
async def test_the_client_reports_failures(body: bytes, status: int, said: str) -> None:
    async with client(body, status) as c:
        with pytest.raises(ReplyError, match=said):
            await c.complete("x", 2)


def test_steady_rate_counts_while_all_decode() -> None:
    traces = [Trace([1.0, 2.0, 3.0, 4.0]), Trace([2.0, 3.0, 4.0, 5.0])]
    assert steady_rate(traces) == 2.0  # tokens at 3 and 4 of both, in two seconds
    with pytest.raises(ValueError, match="never all"):
        steady_rate([Trace([1.0, 2.0]), Trace([3.0, 4.0])])


def test_growth_shapes_are_measured_once_each_and_summarised() -> None:
    assert shapes_of([1, 2], [128, 512]) == [(1, 128), (2, 128), (1, 512)]
    points = [Point(2, 1, 128, rate, 10 * rate) for rate in (3.0, 1.0, 2.0)]
    assert medians(points) == [Point(2, 1, 128, 2.0, 20.0)]


def test_charts_are_well_formed_and_hold_every_point() -> None:
    points = [Point(t, b, c, 10.0 * t, 5.0) for t in (1, 2) for b, c in shapes_of([1, 4], [512])]
    root = ET.fromstring(svg(charts(points)))
    circles = root.iter("{http://www.w3.org/2000/svg}circle")
    assert len(list(circles)) == 4 + 4 + 4
    with pytest.raises(ValueError, match="no points"):
        svg([Chart("empty", "x", "y", {})])


@pytest.mark.parametrize(("value", "top"), [(0.9, 1), (1, 1), (180, 200), (210, 250), (2600, 5000)])
def test_axes_end_on_round_numbers(value: float, top: float) -> None:
    assert round_up(value) == pytest.approx(top)
