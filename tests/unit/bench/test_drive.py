"""Figures by hand-made answers, counters of a Flare server, and times that count from when due."""

import asyncio
import json

import pytest
from aiohttp import web

from app.bench.client import Client
from app.bench.drive import Answer, Outcome, drive, joined
from app.bench.endpoint import Counters, counters, root_url
from app.bench.figures import Objective, figures
from app.bench.workloads import Request
from engine.errors import SettingsError
from tests.support.loopback import loopback


def answer(index: int, wait: float, *gaps: float) -> Answer:
    return Answer(index, 1.0, 1.0 + wait, gaps, 10, len(gaps) + 1, "text")


def test_figures_of_a_run() -> None:
    outcome = Outcome(4.0, (answer(0, 0.1, 0.01, 0.02), answer(1, 0.3, 0.03, 0.04)), ())
    found = figures(outcome, Objective(0.2, 0.02))
    assert (found["tok_s"], found["req_s"], found["goodput"]) == (6 / 4, 0.5, 0.25)
    assert found["ttft_p50"] == pytest.approx(200) and found["ttft_max"] == pytest.approx(300)
    assert found["gap_p50"] == pytest.approx(25) and found["gap_max"] == pytest.approx(40)
    assert "goodput" not in figures(outcome, None)


def test_an_objective_needs_both_and_takes_the_longest_gap() -> None:
    objective = Objective(0.2, 0.05)
    assert objective.kept(answer(0, 0.2, 0.05)) and objective.kept(answer(0, 0.2))
    assert not objective.kept(answer(0, 0.21, 0.01))
    assert not objective.kept(answer(0, 0.1, 0.01, 0.06))


METRICS = """\
# TYPE flare_graph_launches counter
flare_graph_launches_total{graph="decode-1",kind="decode"} 3.0
flare_graph_launches_total{graph="decode-2",kind="decode"} 4.0
flare_graph_launches_total{graph="mixed-64",kind="mixed"} 2.0
# TYPE flare_padded_tokens counter
flare_padded_tokens_total{kind="mixed"} 70.0
# TYPE flare_preemptions counter
flare_preemptions_total 1.0
"""


def test_counters_are_summed_by_kind_and_subtracted() -> None:
    now = counters(METRICS)
    assert now == Counters({"decode": 7.0, "mixed": 2.0}, {"mixed": 70.0}, 1.0, 0.0)
    before = Counters({"decode": 7.0, "mixed": 1.0}, {}, 1.0, 0.0)
    assert now.since(before) == Counters({"mixed": 1.0}, {"mixed": 70.0}, 0.0, 0.0)


@pytest.mark.parametrize("url", ["http://host:8000", "http://host:8000/", "http://host:8000/v1/"])
def test_urls_with_and_without_v1_are_the_same(url: str) -> None:
    assert root_url(url) == "http://host:8000"


@pytest.mark.parametrize("url", ["host:8000", "ftp://host", "", "http://"])
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(SettingsError, match="--base-url"):
        root_url(url)


class SlowServer:
    """Answers a prompt with itself after 50 ms; "fail" with 500. ``most``: at once."""

    def __init__(self) -> None:
        self.open = self.most = 0
        self.order: list[str] = []

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        prompt = (await request.json())["prompt"]
        self.order.append(prompt)
        self.open += 1
        self.most = max(self.most, self.open)
        await asyncio.sleep(0.05)
        self.open -= 1
        if prompt == "fail":
            return web.Response(status=500, text="broken")
        event = json.dumps({"choices": [{"text": prompt}]})
        return web.Response(text=f"data: {event}\n\ndata: [DONE]\n\n")


async def driven(requests: list[Request], concurrency: int) -> tuple[SlowServer, Outcome]:
    server = SlowServer()
    async with loopback(server) as url, Client(f"{url}/v1", {}, 5) as client:
        return server, await drive(client, requests, concurrency)


async def test_no_more_streams_than_asked_for_and_failures_are_kept() -> None:
    requests = [Request(text, 1, 1) for text in ("a", "b", "fail", "c", "d")]
    server, outcome = await driven(requests, 2)
    assert server.most == 2 and server.order == ["a", "b", "fail", "c", "d"]
    assert [(a.index, a.text) for a in outcome.answers] == [(0, "a"), (1, "b"), (3, "c"), (4, "d")]
    assert outcome.failures == ((2, "HTTP 500: broken"),)
    # Without arrival times, a wait begins when the request is sent.
    assert all(a.wait > 0.04 for a in outcome.answers)
    assert outcome.answers[-1].due > 0.04


async def test_a_request_that_waits_for_a_stream_waits_from_when_it_was_due() -> None:
    requests = [Request("a", 1, 1, at=0.0), Request("b", 1, 1, at=0.01)]
    _, outcome = await driven(requests, 1)
    assert outcome.answers[1].due == 0.01
    assert outcome.answers[1].wait >= 0.085  # until a has ended, then its own 50 ms


async def test_a_group_begins_when_the_last_has_ended() -> None:
    requests = [Request("a", 1, 1), Request("b", 1, 1), Request("c", 1, 1, group=1)]
    server, outcome = await driven(requests, 8)
    assert server.most == 2
    assert outcome.answers[2].due >= 0.05


def test_runs_are_joined_without_the_time_between_them() -> None:
    first = Outcome(2.0, (Answer(0, 0.1, 0.5, (0.2,), 1, 2, "a", 0.1),), ((1, "broken"),))
    second = Outcome(3.0, (Answer(0, 0.2, 0.7, (), 1, 1, "b"),), ())
    found = joined([first, second])
    assert (found.seconds, found.failures) == (5.0, ((1, "broken"),))
    assert [(a.index, a.text) for a in found.answers] == [(0, "a"), (2, "b")]
    assert found.answers[1].due == pytest.approx(2.2) and found.answers[1].sent is None
    assert found.answers[1].wait == pytest.approx(0.5)
