"""Measure Flare and the installed peers side by side; write a Markdown report and its JSON.

python -m benchmarks.serving [--rounds 3] [--servers Flare,llama] [--scenarios single,burst32]
python -m benchmarks.serving --merge RUN.json... (report only)
"""

import argparse
import datetime
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from app.bench.http import run as run_loop
from app.bench.machine import machine
from benchmarks.serving.prompts import load_words
from benchmarks.serving.report import markdown
from benchmarks.serving.results import Entry, Run, Sample, merged, run_of
from benchmarks.serving.runner import Plan, run_rounds
from benchmarks.serving.scenarios import SCENARIOS, Scenario
from benchmarks.serving.servers import ROOT, Models, Server, all_servers
from engine.export.source import resolve_model


def options() -> argparse.Namespace:
    """The command line."""
    ap = argparse.ArgumentParser(prog="python -m benchmarks.serving", description=__doc__)
    ap.add_argument("--rounds", type=int, default=3, help="repeats, interleaved over the servers")
    ap.add_argument("--servers", default="", help="comma-separated parts of names; default all")
    ap.add_argument("--scenarios", default="", help="comma-separated names; default all")
    ap.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    ap.add_argument("--core", type=Path, help="default: exported anew from the default model")
    ap.add_argument("--peers", type=Path, default=ROOT / ".bench", help="where peers are installed")
    ap.add_argument("--output", type=Path, default=ROOT / "benchmarks/results")
    ap.add_argument("--merge", type=Path, nargs="+", help="report on earlier runs, measure nothing")
    return ap.parse_args()


def chosen(names: str, servers: Sequence[Server]) -> list[Server]:
    """The servers whose names hold one of the comma-separated parts; all when there are none.

    Raises ValueError for a part that no name holds.
    """
    parts = [part.strip().lower() for part in names.split(",") if part.strip()]
    for part in parts:
        if not any(part in server.name.lower() for server in servers):
            raise ValueError(f"no server is called {part!r}")
    return [s for s in servers if not parts or any(part in s.name.lower() for part in parts)]


def scenarios_named(names: str) -> list[Scenario]:
    """The scenarios of a comma-separated list; all when it is empty. Raises ValueError."""
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    known = [scenario.name for scenario in SCENARIOS]
    if unknown := set(wanted) - set(known):
        raise ValueError(f"unknown scenarios: {', '.join(sorted(unknown))}; known: {known}")
    return [scenario for scenario in SCENARIOS if not wanted or scenario.name in wanted]


def prepare(a: argparse.Namespace) -> Models:
    """Export the core unless one is given; convert the weights for the peers once."""
    a.peers.mkdir(parents=True, exist_ok=True)
    gguf = resolve_model("smollm2").path
    core = a.core
    if core is None:
        core = a.peers / "flare.core"
        flare = ROOT / ".venv/bin/flare"
        subprocess.run([flare, "export", "smollm2", "--output", core, "--overwrite"], check=True)
    made = {"dense": a.peers / "dense", "eight_bit": a.peers / "q8_0.gguf"}
    for module, path in made.items():
        if not path.exists():
            command = [sys.executable, "-m", f"benchmarks.serving.{module}", gguf, path]
            subprocess.run(command, check=True, cwd=ROOT)
    return Models(core, gguf, made["eight_bit"], made["dense"])


def entry(server: Server) -> Entry:
    """What the report says of a server; paths are shortened to the checkout's."""
    command = " ".join(server.command).replace(f"{ROOT}/", "")
    package = str(resolve_model("smollm2").path.parent).replace(f"{ROOT}/", "") + "/"
    variables = [f"{name}={value}" for name, value in server.environment.items()]
    shown = " ".join([*variables, command.replace(package, "")])
    return Entry(server.name, server.weights, server.version, server.ours, server.installed, shown)


def measure(a: argparse.Namespace) -> Run:
    """One run over the chosen servers; those that are not installed are reported as such."""
    scenarios = scenarios_named(a.scenarios)
    models = prepare(a)
    servers = chosen(a.servers, all_servers(models, a.peers.resolve(), a.threads))
    facts = machine()
    logs = a.peers / "logs"
    logs.mkdir(exist_ok=True)
    words = load_words(models.core / "text/tokenizer.json")
    installed = [server for server in servers if server.installed]
    plan = Plan(installed, scenarios, a.rounds, words, logs)
    samples: list[Sample] = run_loop(run_rounds(plan))
    settings = {"model": models.gguf.name, "threads": str(a.threads), "rounds": str(a.rounds)}
    date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return Run(date, facts, settings, tuple(entry(s) for s in servers), tuple(samples))


def write(run: Run, directory: Path) -> Path:
    """Write serving-DATE.json and .md; a second run of the day gets the time as well."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"serving-{run.date[:10]}.md"
    if path.exists():
        path = directory / f"serving-{run.date[:16].replace(':', '')}.md"
    path.with_suffix(".json").write_text(json.dumps(run.as_json(), indent=1) + "\n")
    path.write_text(markdown(run))
    return path


def main() -> int:
    """Run or merge; print the report and where it lies."""
    a = options()
    try:
        run = (
            merged([run_of(json.loads(p.read_text())) for p in a.merge]) if a.merge else measure(a)
        )
    except ValueError as error:
        print(f"benchmarks: error: {error}", file=sys.stderr)
        return 2
    path = write(run, a.output)
    print(markdown(run))
    print(f"written to {path}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
