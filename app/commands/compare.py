"""``flare compare``: the same requests to both graph families of a core, and which to serve."""

import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from msgspec import structs

from app import values
from app.bench.compare.analysis import corrected, decisive
from app.bench.compare.cells import Cell, grid_cells, load_cells
from app.bench.compare.forecasts import Foretold, forecasts
from app.bench.compare.page import page
from app.bench.compare.power import open_meter
from app.bench.compare.progress import show_progress
from app.bench.compare.report import Ask, Report, build, to_json, write_file
from app.bench.compare.run import Comparison, Results, compare_legs, room_leg
from app.bench.compare.samples import BY_NAME, ENERGY, METRICS, WATTS
from app.bench.compare.server import HIDDEN
from app.bench.compare.table import report_text
from app.bench.figures import Metric, Objective
from app.bench.plan import Plan
from app.bench.serving import now
from app.bench.stats import pairs_needed
from app.commands.arguments import Parser
from app.commands.load_options import add_load_options, read_option, read_plan
from app.sources import load_settings
from engine.errors import SettingsError
from engine.inspection import inspect_core

DESCRIPTION = """\
Which graph family suits your traffic? Serve the same core with --no-mixed-prefill and with
--mixed-prefill, send both the same requests, and say which is better: first token, inter-token
latency, throughput, goodput, launches, memory, loading; with confidence intervals, and whether
all texts were identical (they must be).

Each repeat is a pair of fresh servers side by side, with requests of its own. These go to both in
blocks, in turn (A B, B A, B A, A B, ...), while the other rests: what the machine does otherwise
meets both alike. A block is 4 requests for each stream, or all where arrival times are given; more
--requests are more blocks. A verdict holds at --confidence for all that it looks at together, so
it needs a fewest number of repeats, which is the default. The two families are compared as your
FLARE_ variables set them (FLARE_THREADS, FLARE_KV_CACHE_MEMORY, ...). Keep the machine idle
meanwhile. Ctrl-C ends the servers and keeps what was measured.

Written to DIR: report.html (one file, to be looked at or sent) and report.json (everything)."""
EXAMPLES = """\
  flare compare my.core                                  chat, 8 streams
  flare compare my.core --workload long-prompt --concurrency 8,32
  flare compare my.core --trace trace.jsonl --output report
  flare compare my.core --slo-ttft 0.5 --slo-gap 0.1     decide by goodput, too
  flare compare my.core --heatmap                        prompt length by streams
  flare compare my.core --heatmap --prompt-lengths 64,512 --concurrency 2,8 --metric ttft_mean"""
REPEATS = "pairs of servers, each with other prompts (default: the fewest for a verdict, 8 or more)"
USUAL_OBJECTIVE = Objective(1.0, 0.2)
LENGTHS: Sequence[int] = (64, 256, 1024)
STREAMS = (1, 4, 16)
OUTPUT_TOKENS = 48


def main(arguments: list[str]) -> int:
    """Measure, write the report, print table and verdict; 1 when no verdict could be given.

    Raises SettingsError, CoreError, SelectionError, DeviceError, FlareError; KeyboardInterrupt
    after Ctrl-C, when what was measured is written.
    """
    given = vars(_parser().parse_args(arguments))
    ask = _ask(given)
    # its fault, before any server starts
    found = inspect_core(ask.comparison.core, mixed_prefill=True)
    timed = structs.replace(ask.comparison, probe=bool(found["step_times"]))
    ask = structs.replace(ask, comparison=timed)
    directory = _directory(given)
    report = _measure(ask, directory)
    path = _write(directory, "report.html", page(report))
    sys.stdout.write(report_text(report))
    print(f"flare: {path}", file=sys.stderr)
    return 1 if report.verdict.kind == "invalid" else 0


def _measure(ask: Ask, directory: Path) -> Report:
    """Run the comparison; what was measured is kept also when it does not come to its end."""
    date, began, results = now(), time.monotonic(), Results()
    error: str | None = "interrupted"
    try:
        with show_progress(ask.comparison.units) as advance:
            compare_legs(ask.comparison, results, advance)
        ask = structs.replace(ask, forecasts=_forecasts(ask, results))
        error = None
    except Exception as exc:
        error = str(exc)
        raise
    finally:
        report = build(ask, results, date, time.monotonic() - began, error)
        _keep(report, directory)
    return report


def _forecasts(ask: Ask, results: Results) -> dict[str, Foretold]:
    comparison = ask.comparison
    if not comparison.probe:
        return {}
    return forecasts(comparison.core, comparison.groups, results.probes, comparison.repeats)


def _keep(report: Report, directory: Path) -> None:
    """Write report.json; a folder in which there would be nothing goes."""
    if report.samples:
        path = _write(directory, "report.json", to_json(report))
        if not report.complete:
            print(f"flare: what was measured is in {path}", file=sys.stderr)
    else:
        with suppress(OSError):  # it holds something else
            directory.rmdir()


def _parser() -> Parser:
    parser = Parser("compare", DESCRIPTION, EXAMPLES)
    parser.add_argument("core", metavar="CORE", type=Path, help="path of the core")
    load = parser.add_argument_group("load")
    add_load_options(load, REPEATS)
    verdict = parser.add_argument_group("verdict")
    verdict.add_argument(
        "--confidence", metavar="P", help="that no deciding interval misses (default: 0.95)"
    )
    grid = parser.add_argument_group("heat map")
    grid.add_argument(
        "--heatmap",
        action="store_true",
        help="instead of a workload: prompts of one length in each cell, against --concurrency "
        f"(default: {','.join(map(str, STREAMS))})",
    )
    shown = ",".join(map(str, LENGTHS))
    grid.add_argument("--prompt-lengths", metavar="N,N", help=f"tokens (default: {shown})")
    grid.add_argument(
        "--output-tokens", metavar="N", help=f"of an answer, about (default: {OUTPUT_TOKENS})"
    )
    names = tuple(metric.name for metric in METRICS)
    grid.add_argument(
        "--metric",
        metavar="NAME",
        choices=names,
        help=f"that the map shows and decides by (default: tok_s): {', '.join(names)}",
    )
    return parser


def _ask(given: Mapping[str, Any]) -> Ask:
    """The question. Raises SettingsError naming the option."""
    plan = read_plan(_with_streams(given), 0)
    asked = plan.objective is not None
    plan = replace(plan, objective=plan.objective or USUAL_OBJECTIVE)
    metric = _map_metric(given)
    cells = load_cells(plan) if metric is None else _grid(given, plan)
    groups = tuple((cell,) for cell in cells) if metric is None else (cells,)
    decide = decisive(asked) if metric is None else (metric,)
    confidence = read_option(given, "confidence", _confidence, 0.95)
    level = corrected(confidence, len(decide) * len(cells))
    repeats = _repeats(plan.repeats, level, len(decide), len(cells))
    core, meter = given["core"], open_meter()
    if metric in (ENERGY, WATTS) and meter.absent is not None:
        raise SettingsError(f"--metric {given['metric']} cannot be measured: {meter.absent}")
    return Ask(
        comparison=Comparison(core, groups, repeats, meter, third=room_leg()),
        decide=decide,
        confidence=confidence,
        level=level,
        asked=asked,
        map_metric=None if metric is None else metric.name,
        forecasts={},
        variables=variables(),
    )


def variables() -> dict[str, str]:
    """Settings of the environment and .env that both servers will have, beyond the defaults.

    Raises SettingsError for one that they would refuse.
    """
    settings = load_settings({})
    fields = type(settings).model_fields
    names = ((name, f"FLARE_{name.upper()}") for name in sorted(settings.model_fields_set))
    return {
        variable: str(getattr(settings, name))
        for name, variable in names
        if variable not in HIDDEN and getattr(settings, name) != fields[name].default
    }


def _with_streams(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """A heat map has streams of its own where none are given, and no workload."""
    if "heatmap" not in given:
        for name in ("prompt_lengths", "output_tokens", "metric"):
            if name in given:
                raise SettingsError(f"--{name.replace('_', '-')} is for --heatmap")
        return given
    for name in ("workload", "trace"):
        if name in given:
            raise SettingsError(f"--heatmap and --{name}: give one of them")
    return {"concurrency": ",".join(map(str, STREAMS)), **given}


def _map_metric(given: Mapping[str, Any]) -> Metric | None:
    return BY_NAME[given.get("metric", "tok_s")] if "heatmap" in given else None


def _grid(given: Mapping[str, Any], plan: Plan) -> tuple[Cell, ...]:
    lengths = read_option(given, "prompt_lengths", _lengths, LENGTHS)
    output = read_option(given, "output_tokens", values.whole(1, 10**5), OUTPUT_TOKENS)
    return grid_cells(plan, lengths, output)


def _repeats(asked: int, level: float, metrics: int, cells: int) -> int:
    """The repeats asked for, or enough. Raises SettingsError for fewer than show anything."""
    needed = pairs_needed(level)
    if 0 < asked < needed:
        raise SettingsError(
            f"--repeats {asked} cannot give a verdict: {metrics} metrics in {cells} cells at "
            f"{100 * level:.2f} % each need at least {needed}",
            f"give --repeats {needed} or more, fewer cells, or a lower --confidence",
        )
    return asked or max(8, needed)


def _confidence(value: object) -> float:
    share = float(str(value)) if str(value).replace(".", "", 1).isdigit() else 0.0
    if not 0 < share < 1:
        raise ValueError(f"must be a number between 0 and 1, such as 0.95, not {value!r}")
    return share


def _lengths(value: object) -> Sequence[int]:
    read = values.whole(1, 10**6)
    return tuple(dict.fromkeys(read(part) for part in str(value).split(",")))


def _directory(given: Mapping[str, Any]) -> Path:
    """The folder of the report, made now: a long run must not end without a place for it."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    directory = Path(given.get("output", f"flare-compare-{stamp}"))
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if not os.access(directory, os.W_OK | os.X_OK):
            raise PermissionError(0, "Permission denied")
    except OSError as exc:
        raise SettingsError(f"cannot write to --output {directory}: {exc.strerror}") from exc
    return directory


def _write(directory: Path, name: str, text: str) -> Path:
    try:
        return write_file(directory, name, text)
    except OSError as exc:
        raise SettingsError(f"cannot write to --output {directory}: {exc.strerror}") from exc
