"""Run every client against a Flare server: ``python -m tests.clients [CORE]``.

The clients live in environments of their own under .clients/ (`make test-clients` fills them).
Exit code 1 when a check failed.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import httpx
from rich.console import Console
from rich.table import Table

from tests.support.process import ROOT, flare, server_process

FOLDER = Path(__file__).parent
INSTALLED = ROOT / ".clients"
SECONDS = 180
SCRIPTS = {
    "check_openai.py": "openai",
    "check_langchain.py": "openai",
    "check_pydantic_ai.py": "openai",
    "check_agents.py": "openai",
    "check_litellm.py": "instructor",
    "check_instructor.py": "instructor",
    "check_openai.mjs": "node",
    "check_ai.mjs": "node",
}


def command(script: str, group: str) -> list[str]:
    """How a script is run in its environment."""
    if group == "node":
        return ["node", str(INSTALLED / "node" / script)]
    return [str(INSTALLED / group / "bin" / "python"), str(FOLDER / script)]


def run(script: str, group: str, url: str, model: str) -> list[dict[str, str | None]]:
    """The outcomes that a script reported; a script that broke is one more."""
    environment = {**os.environ, "FLARE_URL": url, "FLARE_MODEL": model, "DO_NOT_TRACK": "1"}
    done = subprocess.run(
        command(script, group),
        env=environment,
        text=True,
        capture_output=True,
        timeout=SECONDS,
        check=False,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"client"')]
    failed = any(line["error"] for line in lines)
    if failed or done.returncode or not lines:
        sys.stderr.write(done.stderr[-6000:])
    if not lines or (done.returncode and not failed):
        lines.append({"client": script, "version": "", "check": "run", "error": "it broke"})
    return lines


def main(arguments: list[str]) -> int:
    """Serve, run all scripts (or those whose names hold an argument after CORE), print a table."""
    core, chosen = arguments[:1], arguments[1:]
    outcomes = []
    with server_process(flare("run", *core, "--port", "0")) as server:
        url = server.ready()
        model = httpx.get(f"{url}/v1/models").json()["data"][0]["id"]
        for script, group in SCRIPTS.items():
            if not chosen or any(word in script for word in chosen):
                outcomes += run(script, group, url, model)
        assert httpx.get(f"{url}/health").status_code == 200
    table = Table("client", "version", "check", "outcome")
    for one in outcomes:
        table.add_row(one["client"], one["version"], one["check"], one["error"] or "passed")
    Console(width=120).print(table)
    failed = sum(one["error"] is not None for one in outcomes)
    print(f"{len(outcomes) - failed} passed, {failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
