"""``flare bench``: send a load to a running server and measure what comes back."""

import os
import sys
from typing import Any

from app.bench.serving import Target, bench, bench_json, write_json
from app.bench.tables import bench_text
from app.commands.arguments import Parser
from app.commands.load_options import add_load_options, read_plan

DESCRIPTION = """\
Send a load to a running server and measure: time to first token, gaps between chunks, throughput,
and goodput under an objective. Any server that speaks OpenAI's text completions will do; of Flare
it reads graph launches and padding too. The client needs processor time of its own."""
EXAMPLES = """\
  flare bench --base-url http://127.0.0.1:8000
  flare bench --base-url http://127.0.0.1:8000 --workload long-prompt --concurrency 8,32
  flare bench --base-url http://127.0.0.1:8000 --rate 2 --slo-ttft 0.5 --slo-gap 0.1
  flare bench --base-url http://127.0.0.1:8000 --trace trace.jsonl --output report"""
REPEATS = 3


def main(arguments: list[str]) -> int:
    """Measure, print a table, write the report. Raises SettingsError and FlareError."""
    given = vars(_parser().parse_args(arguments))
    plan = read_plan(given, REPEATS)
    target = Target(
        given["base_url"],
        given.get("api_key") or os.environ.get("OPENAI_API_KEY"),
        given.get("model"),
        given.get("ignore_eos", True),
    )
    run = bench(target, plan, _say)
    title = f"{run.model}, {plan.name}, streams at once (medians of {plan.repeats})"
    sys.stdout.write(bench_text(run, plan.concurrency, title))
    if plan.output is not None:
        print(f"flare: {write_json(plan.output, bench_json(run, plan))}", file=sys.stderr)
    return 0


def _parser() -> Parser:
    parser = Parser("bench", DESCRIPTION, EXAMPLES)
    _add_server(parser.add_argument_group("server"))
    repeats = f"of every cell, each with other prompts (default: {REPEATS})"
    add_load_options(parser.add_argument_group("load"), repeats)
    return parser


def _add_server(group: Any) -> None:
    group.add_argument("--base-url", metavar="URL", required=True, help="with or without /v1")
    group.add_argument("--model", metavar="NAME", help="default: the first that it lists")
    group.add_argument(
        "--api-key", metavar="KEY", help="bearer key (default: the variable OPENAI_API_KEY)"
    )
    group.add_argument(
        "--no-ignore-eos",
        dest="ignore_eos",
        action="store_false",
        help="do not send ignore_eos, for servers that refuse it; answers may end early",
    )


def _say(line: str) -> None:
    print(f"flare: {line}", file=sys.stderr, flush=True)
