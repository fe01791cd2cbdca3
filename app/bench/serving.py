"""``flare bench``: one running server, every cell of a plan."""

import datetime
import json
import os
import platform
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.bench.client import Client
from app.bench.endpoint import Endpoint
from app.bench.http import run
from app.bench.measure import BODY, Measured, measure, warm
from app.bench.plan import Plan
from engine import __version__
from engine.errors import SettingsError

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Target:
    """The server to measure. ``ignore_eos``: ask for outputs of full length."""

    base_url: str
    api_key: str | None = None
    model: str | None = None
    ignore_eos: bool = True


@dataclass(frozen=True, slots=True)
class BenchRun:
    """All that was measured of one server. ``config``: /v1/config of a Flare server."""

    date: str
    url: str
    model: str
    config: dict[str, Any] | None
    measured: tuple[Measured, ...]

    def cell(self, concurrency: int) -> list[Measured]:
        """The repeats at one number of streams."""
        return [one for one in self.measured if one.concurrency == concurrency]


def bench(target: Target, plan: Plan, say: Say) -> BenchRun:
    """Measure; ``say`` gets a line of progress for each repeat.

    Raises SettingsError for a server that does not answer or a cell that it cannot run, and
    FlareError when every request of a repeat failed.
    """
    return run(_bench(target, plan, say))


async def _bench(target: Target, plan: Plan, say: Say) -> BenchRun:
    async with Endpoint(target.base_url, target.api_key) as endpoint:
        model = target.model or await endpoint.model()
        config = await endpoint.config()
        if config is not None:
            limits = config["scheduler"]
            plan.check(limits["max_num_seqs"], limits.get("max_model_len", plan.longest()))
        body = {**BODY, "model": model}
        if not target.ignore_eos:
            del body["ignore_eos"]
        url = f"{endpoint.root}/v1"
        measured = []
        async with Client(url, body, plan.timeout_s, api_key=target.api_key) as client:
            for concurrency in plan.concurrency:
                await warm(client, plan, concurrency)
                for repeat in range(plan.repeats):
                    ours = config is not None
                    one = await measure(client, endpoint, plan, concurrency, repeat, ours)
                    say(progress(plan, one))
                    measured.append(one)
    return BenchRun(now(), endpoint.root, model, config, tuple(measured))


def progress(plan: Plan, one: Measured) -> str:
    """A line that tells of one repeat."""
    found = one.figures
    failed = f", {len(one.outcome.failures)} failed" if one.outcome.failures else ""
    return (
        f"{plan.name} at {one.concurrency}, repeat {one.repeat + 1} of {plan.repeats}: "
        f"{found['tok_s']:.1f} tok/s, first token p50 {found['ttft_p50']:.0f} ms{failed}"
    )


def bench_json(run: BenchRun, plan: Plan) -> dict[str, Any]:
    """The data of report.json."""
    return {
        "object": "bench",
        **facts(run.date, plan),
        "server": {"url": run.url, "model": run.model, "config": run.config},
        "runs": [one.as_json() for one in run.measured],
    }


def facts(date: str, plan: Plan) -> dict[str, Any]:
    """What every report says of its making."""
    objective = plan.objective
    slo = {"first_token_s": objective.first_token, "gap_s": objective.gap} if objective else None
    return {
        "format_version": 1,
        "flare_version": __version__,
        "date": date,
        "client": {"machine": platform.machine(), "cores": os.cpu_count()},
        "plan": {
            "workload": plan.name,
            "concurrency": list(plan.concurrency),
            "repeats": plan.repeats,
            "requests": [plan.load(n, 0).requests for n in plan.concurrency],
            "rate": plan.rate,
            "seed": plan.seed,
            "objective": slo,
        },
    }


def now() -> str:
    """The time in UTC, ISO 8601."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def write(directory: Path, name: str, text: str) -> Path:
    """Write one file of a report. Raises SettingsError when the directory cannot be written."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / name
        path.write_text(text, encoding="utf-8")
    except OSError as exc:
        raise SettingsError(f"cannot write to --output {directory}: {exc.strerror}") from exc
    return path


def write_json(directory: Path, data: dict[str, Any]) -> Path:
    """Write ``report.json``. Raises as ``write``."""
    return write(directory, "report.json", json.dumps(data, indent=1) + "\n")
