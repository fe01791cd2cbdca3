"""The options of a load: what is sent, when, and how often."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from app import values
from app.bench.figures import Objective
from app.bench.plan import FIRST_SEED, Plan
from app.bench.traces import read_trace
from app.bench.workloads import WORKLOADS
from engine.errors import SettingsError

T = TypeVar("T")
MOST = 10**6


def add_load_options(group: Any, repeats: str) -> None:
    """Add them; ``repeats``: what that option means, and its default."""
    about = "; ".join(f"{name}: {workload.about}" for name, workload in WORKLOADS.items())
    group.add_argument("--workload", choices=tuple(WORKLOADS), help=f"default: chat. {about}")
    group.add_argument(
        "--trace",
        metavar="FILE",
        type=Path,
        help="JSON lines instead: prompt or conversations (ShareGPT), or input_length, "
        "output_length and timestamp (Mooncake)",
    )
    for option, metavar, text in (
        ("--concurrency", "N,N", "streams at once, each a cell of its own (default: 8)"),
        ("--requests", "N", "of one repeat (default: 4 for each stream; the whole trace)"),
        ("--repeats", "N", repeats),
        (
            "--rate",
            "R",
            "requests a second, Poisson arrivals (bursts: of whole bursts); without it a stream "
            "sends its next request when its last has ended, a trace goes by its timestamps",
        ),
        ("--slo-ttft", "SECONDS", "for goodput: to the first token; with --slo-gap"),
        ("--slo-gap", "SECONDS", "for goodput: the longest gap between two chunks of a stream"),
        ("--seed", "N", f"of prompts, lengths and arrivals (default: {FIRST_SEED})"),
        ("--timeout", "SECONDS", "of one request (default: 600)"),
    ):
        group.add_argument(option, metavar=metavar, help=text)
    group.add_argument("--output", metavar="DIR", type=Path, help="folder for the report")


def read_plan(given: Mapping[str, Any], repeats: int) -> Plan:
    """The plan of the parsed options; ``repeats``: where none are given.

    Raises SettingsError naming the option or the line of the trace.
    """
    if "trace" in given and "workload" in given:
        raise SettingsError("--trace and --workload: give one of them")
    trace = given.get("trace")
    workload = WORKLOADS[given.get("workload", "chat")]
    return Plan(
        source=workload if trace is None else tuple(read_trace(trace)),
        concurrency=read_option(given, "concurrency", _streams, (8,)),
        repeats=read_option(given, "repeats", values.whole(1, 1000), repeats),
        requests=read_option(given, "requests", values.whole(1, MOST), None),
        rate=read_option(given, "rate", _rate, None),
        objective=_objective(given),
        seed=read_option(given, "seed", values.whole(0, 2**31), FIRST_SEED),
        timeout_s=read_option(given, "timeout", values.seconds(1, 86400), 600.0),
        output=given.get("output"),
    )


def read_option(given: Mapping[str, Any], name: str, read: Callable[[object], T], default: T) -> T:
    """One option's value; ``default`` when it was not given. Raises SettingsError naming it."""
    if name not in given:
        return default
    try:
        return read(given[name])
    except ValueError as exc:
        raise SettingsError(f"--{name.replace('_', '-')} {exc}") from exc


def _streams(value: object) -> tuple[int, ...]:
    read = values.whole(1, 10_000)
    return tuple(dict.fromkeys(read(part) for part in str(value).split(",")))


def _rate(value: object) -> float:
    try:
        return values.seconds(1e-6, 1e6)(value)
    except ValueError:
        raise ValueError(f"must be a number of requests a second above 0, not {value!r}") from None


def _objective(given: Mapping[str, Any]) -> Objective | None:
    read = values.seconds(0, 86400)
    first = read_option(given, "slo_ttft", read, -1.0)
    gap = read_option(given, "slo_gap", read, -1.0)
    if first < 0 and gap < 0:
        return None
    if first < 0 or gap < 0:
        raise SettingsError("--slo-ttft and --slo-gap make one objective: give both or none")
    return Objective(first, gap)
