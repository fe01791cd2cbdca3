"""``flare inspect --predict``: a load's figures on each graph family, without serving it."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.table import Table

from app import values
from app.bench.figures import METRICS, Figures
from app.bench.forecast import FAMILIES, OVERHEADS, forecast
from app.bench.plan import Plan
from app.bench.tables import fit_text, shown_value, text_of
from app.commands.arguments import Parser
from app.commands.load_options import add_load_options, read_plan
from engine.errors import RequestError, SettingsError
from engine.inspection import inspect_core
from engine.simulation import Overheads

DESCRIPTION = """\
Forecast a load for both graph families of a core: the scheduler and the planner of flare run, on a
virtual clock that the core's step times move. Nothing is loaded and nothing is served. What the
server and the client do beside the device is in it as three numbers, and how much slower than in
those step times the device is as two factors; all can be set, for instance to what flare compare
has fitted. The defaults are those of a machine of two cores that both share."""
EXAMPLES = """\
  flare inspect my.core --predict --workload chat --concurrency 8,32
  flare inspect my.core --predict --trace trace.jsonl --json"""
REPEATS = 3
_OVERHEADS = (
    ("request", "of a request before it can be scheduled, one after another"),
    ("step", "of a step beside the device"),
    ("token", "of each token that is sent, server and client"),
)
_FACTORS = (
    ("decode", "times the core's step times that steps take"),
    ("prompt", "times the core's step times that steps with prompt rows take"),
)


def main(arguments: list[str]) -> int:
    """Print the forecast. Raises SettingsError when the core has no step times, or cannot take the
    load; CoreError."""
    given = vars(_parser().parse_args(arguments))
    plan, overheads = read_plan(given, REPEATS), read_overheads(given)
    core: Path = given["core"]
    found = inspect_core(core)
    plan.check(found["limits"]["max_num_seqs"], found["limits"]["max_model_len"])
    try:
        own = dict.fromkeys(FAMILIES, overheads)
        cells = {n: forecast(core, plan, n, own) for n in plan.concurrency}
    except RequestError as error:
        raise SettingsError(str(error), "choose a load with shorter prompts") from error
    report = _json(plan, found, overheads, cells)
    if plan.output is not None:
        _write(plan.output, report)
    if "json" in given:
        print(json.dumps(report, indent=2))
        return 0
    tables = [_table(plan, streams, figures) for streams, figures in cells.items()]
    sys.stdout.write(text_of(tables) + _footer(found, overheads))
    return 0


def _parser() -> Parser:
    parser = Parser("inspect --predict", DESCRIPTION, EXAMPLES)
    parser.add_argument("core", metavar="CORE", type=Path, help="path of the core")
    parser.add_argument("--predict", action="store_true", help="forecast a load")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    repeats = f"of every cell, each with other prompts (default: {REPEATS})"
    add_load_options(parser.add_argument_group("load"), repeats)
    group = parser.add_argument_group("beside the device")
    for name, text in _OVERHEADS:
        default = f"(default: {getattr(OVERHEADS, name):g})"
        group.add_argument(f"--{name}-overhead", metavar="SECONDS", help=f"{text} {default}")
    for name, text in _FACTORS:
        group.add_argument(f"--{name}-factor", metavar="TIMES", help=f"{text} (default: 1)")
    return parser


def read_overheads(given: Mapping[str, Any]) -> Overheads:
    """The overheads of the parsed options. Raises SettingsError naming the option."""
    reads = {f"{name}_overhead": (name, values.seconds(0, 60)) for name, _ in _OVERHEADS}
    factor = values.number("factor", 0.01, 100)
    reads |= {f"{name}_factor": (name, factor) for name, _ in _FACTORS}
    found = {}
    for option, (name, read) in reads.items():
        try:
            text = given.get(option)
            found[name] = getattr(OVERHEADS, name) if text is None else read(text)
        except ValueError as exc:
            raise SettingsError(f"--{option.replace('_', '-')} {exc}") from exc
    return Overheads(**found)


def _table(plan: Plan, streams: int, figures: Mapping[str, Figures]) -> Table:
    title = f"{plan.name} at {streams} (medians of {plan.repeats} forecasts)"
    table = Table(title=title, title_justify="left", box=None)
    table.add_column("")
    for family in figures:
        table.add_column(family, justify="right")
    both = len(figures) > 1
    if both:
        table.add_column("mixed against separate", justify="right")
    for metric in METRICS:
        row = [found[metric.name] for found in figures.values() if metric.name in found]
        if len(row) == len(figures):
            shown = [shown_value(metric, value) for value in row]
            if both:
                change = 100 * (
                    figures["mixed"][metric.name] / figures["separate"][metric.name] - 1
                )
                shown.append(f"{change:+.1f} %")
            table.add_row(f"{metric.title}, {metric.unit}", *shown)
    return table


def _footer(found: Mapping[str, Any], overheads: Overheads) -> str:
    machines = "; ".join(
        f"{machine['processor']}, {machine['threads']} threads, {machine['isa']}"
        for machine in found["machines"]
    )
    return (
        f"\nstep times: {len(found['step_times'])} points measured on {machines}\n"
        f"{fit_text(overheads)}\n"
    )


def _json(
    plan: Plan, found: Mapping[str, Any], overheads: Overheads, cells: Mapping[int, Any]
) -> dict[str, Any]:
    return {
        "format_version": 1,
        "core": {"path": found["path"], "digest": found["digest"]},
        "machines": found["machines"],
        "workload": plan.name,
        "repeats": plan.repeats,
        "seed": plan.seed,
        "overheads": {name: getattr(overheads, name) for name, _ in (*_OVERHEADS, *_FACTORS)},
        "cells": [{"concurrency": n, "families": figures} for n, figures in cells.items()],
    }


def _write(folder: Path, report: Mapping[str, Any]) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "forecast.json").write_text(json.dumps(report, indent=2) + "\n")
    except OSError as error:
        raise SettingsError(f"--output {folder}: cannot write: {error.strerror}") from error
