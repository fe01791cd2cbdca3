"""``flare inspect``: what a core holds, what a selection would keep, how fast it would serve."""

import io
import json
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from app.commands.arguments import Parser, add_mixed_prefill
from engine.errors import printable
from engine.inspection import inspect_core, program_text

DESCRIPTION = """\
Show a core: identity, graphs, kernels, storage, tuning, step times, and what a selection would
retain and prune. The core is opened read-only; nothing is loaded."""
EXAMPLES = """\
  flare inspect my.core                       what the core's own default keeps
  flare inspect my.core --no-mixed-prefill    what that selection would prune
  flare inspect my.core --json | jq .selection
  flare inspect my.core --program decode-1    what a replay of that graph does
  flare inspect my.core --predict --workload chat --concurrency 8,32"""


def main(arguments: list[str]) -> int:
    """Print the core, or one program of it. Raises what ``engine.inspection`` raises."""
    parser = Parser("inspect", DESCRIPTION, EXAMPLES)
    parser.add_argument("core", metavar="CORE", type=Path, help="path of the core")
    add_mixed_prefill(parser, "resolve this selection; neither: the core's default")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.add_argument("--program", metavar="GRAPH", help="print only this graph's launches")
    parser.add_argument(
        "--predict",
        action="store_true",
        help="forecast a load instead; flare inspect --predict --help lists its options",
    )
    if "--predict" in arguments:
        # Loads and their figures need the client's libraries.
        from app.commands.predict import main as predict

        return predict(arguments)
    given = vars(parser.parse_args(arguments))
    if "program" in given:
        sys.stdout.write(printable(program_text(given["core"], given["program"]), "\n"))
        return 0
    found = inspect_core(given["core"], given.get("mixed_prefill"))
    if "json" in given:
        print(json.dumps(found, indent=2))
    else:
        sys.stdout.write(_as_text(found))
    return 0


def _as_text(found: Mapping[str, Any]) -> str:
    terminal = sys.stdout.isatty()
    width = shutil.get_terminal_size((100, 24)).columns if terminal else 120
    console = Console(
        file=io.StringIO(), force_terminal=terminal, width=width, highlight=False, markup=False,
        emoji=False,
    )  # fmt: skip
    console.print(_identity(found))
    tables = (_graphs(found), _kernels(found), _storage(found), _tuning(found))
    for table in (*tables, *_step_times(found)):
        console.print(table)
    console.print(_summary(found["selection"]))
    output = console.file
    assert isinstance(output, io.StringIO)
    return output.getvalue()


def _identity(found: Mapping[str, Any]) -> Table:
    identity, model, limits = found["identity"], found["model"], found["limits"]
    rows = {
        "core": found["path"],
        "digest": found["digest"],
        "format": f"{found['format_version']}, by Flare {identity['flare_version']}",
        "model": f"{model['id']} ({model['architecture']}, {model['quantization']})",
        "size": f"{model['layers']} layers, hidden {model['hidden']}, heads {model['heads']}"
        f"/{model['kv_heads']}, vocabulary {model['vocab_size']}",
        "source": f"{identity['source']} ({identity['source_digest'][:16]})",
        "target": f"{identity['device']}, tensor parallel {identity['tensor_parallel_size']}, "
        f"tuning {identity['tuning']}",
        "limits": ", ".join(f"{name} {value}" for name, value in limits.items()),
        "default": "mixed prefill" if found["default_mixed"] else "no mixed prefill",
    }
    return _table("", ("", ""), rows.items(), header=False)


def _graphs(found: Mapping[str, Any]) -> Table:
    columns = (
        "graph", "kind", "tokens", "seqs", "logits", "kernels", "workspace", "canary", "selection",
        "capacity",
    )  # fmt: skip
    rows = (
        (
            graph["id"],
            graph["kind"],
            *(graph["domain"][name] for name in ("tokens", "seqs", "logits")),
            graph["kernels"],
            _bytes(graph["workspace_bytes"]),
            graph["canary"]["digest"][:12] if graph["canary"] else "-",
            "retained" if graph["retained"] else f"pruned: {graph['reason']}",
            graph["capacity_reason"] or "-",
        )
        for graph in found["graphs"]
    )
    return _table("graphs", columns, rows)


def _kernels(found: Mapping[str, Any]) -> Table:
    columns = (
        "kernel",
        "op",
        "parameters",
        "needs",
        "prompt class",
        "generated class",
        "selection",
    )
    rows = (
        (
            kernel["id"],
            kernel["op"],
            " ".join(f"{name}={value}" for name, value in kernel["parameters"].items()) or "-",
            " ".join(kernel["requires"]) or "-",
            kernel["prompt_class"] or "-",
            kernel["generated_class"] or "-",
            _kept(kernel),
        )
        for kernel in found["kernels"]
    )
    return _table("kernels", columns, rows)


def _storage(found: Mapping[str, Any]) -> Table:
    columns = ("rank", "layout", "tensors", "stored", "loaded")
    rows = (
        (s["rank"], s["layout"], s["tensors"], _bytes(s["bytes"]), _bytes(s["loaded_bytes"]))
        for s in found["storage"]
    )
    return _table("storage", columns, rows)


def _tuning(found: Mapping[str, Any]) -> Table:
    columns = ("tuning record", "winner", "tried", "gain", "why", "selection")
    rows = (
        (
            record["key"],
            _winner(record),
            record["candidates"],
            "-" if record["gain"] is None else f"{100 * record['gain']:.1f} %",
            record["reason"],
            _kept(record),
        )
        for record in found["tuning"]
    )
    return _table("tuning", columns, rows)


def _winner(record: Mapping[str, Any]) -> str:
    """The winner's parameters, or its name where another kernel than the heuristic's won."""
    winner: str = record["winner"]
    if winner == record["tried"][0]["kernel"]:
        return "heuristic"
    return winner.partition("@")[2] or winner


def _step_times(found: Mapping[str, Any]) -> Iterable[Table]:
    """For each graph, the least and the most that its replays took; nothing without step times."""
    by_graph: dict[str, list[Mapping[str, Any]]] = {}
    for time in found["step_times"]:
        by_graph.setdefault(time["graph"], []).append(time)
    rows = (
        (graph, len(times), *(_step_time(of(times, key=_seconds)) for of in (min, max)))
        for graph, times in by_graph.items()
    )
    if by_graph:
        yield _table("step times", ("graph", "points", "shortest", "longest"), rows)


def _seconds(time: Mapping[str, Any]) -> float:
    return float(time["seconds"])


def _step_time(time: Mapping[str, Any]) -> str:
    return (
        f"{1000 * time['seconds']:.2f} ms ({1000 * time['low']:.2f} to {1000 * time['high']:.2f}): "
        f"{time['tokens']} rows, {time['generated']} of them decode, {time['context']} keys"
    )


def _summary(selection: Mapping[str, Any]) -> str:
    requested = {None: "the core's default", True: "mixed prefill", False: "no mixed prefill"}
    retained, captured = (sum(selection[name].values()) for name in ("retained", "captured"))
    storage, workspace = selection["storage_bytes"], selection["workspace_bytes"]
    return (
        f"\nselection ({requested[selection['requested']]}): family {selection['family']}, "
        f"{retained} of {captured} graphs, "
        f"{selection['kernels']['retained']} of {selection['kernels']['captured']} kernels, "
        f"{_bytes(storage['loaded'])} of {_bytes(storage['captured'])} storage, "
        f"{_bytes(workspace['retained'])} of {_bytes(workspace['captured'])} workspace"
    )


def _table(
    title: str, columns: Sequence[str], rows: Iterable[Iterable[object]], *, header: bool = True
) -> Table:
    table = Table(title=title or None, title_justify="left", show_header=header, box=None)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(printable(str(value)) for value in row))
    return table


def _kept(entry: Mapping[str, Any]) -> str:
    return "retained" if entry["retained"] else "pruned"


def _bytes(count: int) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"
