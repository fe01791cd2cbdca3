"""``flare export``: make a core from a checkpoint."""

import logging
import os
import shlex
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

from app import values
from app.commands.arguments import Parser, add_mixed_prefill
from app.logging import configure_logging
from engine.errors import SettingsError
from engine.export.pipeline import export_core
from engine.export.progress import show_progress
from engine.export.settings import ExportConfig
from engine.export.tuning.journal import journal_path

DESCRIPTION = """\
Make a core: weights packed for the device, programs captured for every shape, kernels chosen.
This is the slow work, done once; 'flare run' only loads. The core appears under its name when it
is complete; an interrupted export leaves nothing but, with --tuning balanced or audit, the journal
that --resume goes on from."""
EXAMPLES = """\
  flare export smollm2 --output smollm2.core            the default model
  flare export model.gguf --output my.core              a GGUF file, weights as they are stored
  flare export ./Llama-3.2-1B --output l.core --quantization int4
  flare export model.gguf --output my.core --tuning balanced    time kernels on this machine
  flare export model.gguf --output my.core --no-mixed-prefill   separate graphs only"""


def main(arguments: list[str]) -> int:
    """Export and say where the core is. Raises SettingsError and CheckpointError."""
    given = vars(_parser().parse_args(arguments))
    configure_logging(_level(), "text")
    signal.signal(signal.SIGTERM, _interrupt)
    started = time.perf_counter()
    config = _config(given)
    try:
        with show_progress() as progress:
            path = export_core(config, progress)
    except KeyboardInterrupt:
        if journal_path(config.output).exists():
            print("hint: the same command with --resume goes on from here", file=sys.stderr)
        raise
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    print(
        f"flare: {path} is complete: {size / 1e6:.1f} MB in {time.perf_counter() - started:.1f} s"
    )
    print(f"serve it: flare run {shlex.quote(str(given['output']))}")
    return 0


def _parser() -> Parser:
    parser = Parser("export", DESCRIPTION, EXAMPLES)
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="a Hugging Face directory with safetensors, a GGUF file, or smollm2",
    )
    parser.add_argument(
        "--output", metavar="CORE", required=True, type=Path, help="folder to make; the core"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace CORE when it exists")
    _add_capture(parser.add_argument_group("what is captured"))
    _add_limits(parser.add_argument_group("limits, which a run can only lower"))
    return parser


def _add_capture(group: Any) -> None:
    add_mixed_prefill(
        group, "capture the mixed graph family too, and serve it by default (default: yes)"
    )
    group.add_argument(
        "--quantization",
        choices=("none", "int8", "int4", "keep"),
        help="weights; keep: as stored (default for GGUF), none: bfloat16 (default otherwise)",
    )
    group.add_argument(
        "--activations",
        choices=("int12", "bf16", "int8"),
        help="of generated tokens, where weights are quantised (default: int12, more accurate than "
        "bf16, and faster but for sixteen streams and more with AMX); int8 is less accurate, and "
        "faster without AMX",
    )
    group.add_argument(
        "--tuning",
        choices=("fast", "balanced", "audit"),
        help="how kernels are chosen; fast: heuristics, in seconds (default); balanced: those "
        "that matter are timed, a minute or two; audit: all are timed at every capacity and "
        "checked, a quarter of an hour and more (docs/tuning.md)",
    )
    group.add_argument(
        "--step-times",
        action="store_true",
        help="time replays too, about half a minute: what flare inspect --predict forecasts from "
        "(balanced and audit do it anyway)",
    )
    group.add_argument("--device", choices=("cpu", "cuda"), help="target (default: cpu)")
    group.add_argument(
        "--layout-budget",
        metavar="BYTES",
        help="what second layouts of weights, for prompts, may add to the core where they are "
        "measured to save time, as in 200MiB (default: 0, none)",
    )
    group.add_argument(
        "--threads", metavar="N", help="compute threads to time with (default: the physical cores)"
    )
    group.add_argument(
        "--resume",
        action="store_true",
        help="go on with an interrupted balanced or audit export: CORE.journal has its timings",
    )


def _add_limits(group: Any) -> None:
    for option, text in (
        ("--max-model-len", "longest prompt plus completion (default: the model's, up to 8192)"),
        ("--max-num-seqs", "sequences that run at once (default: 64)"),
        ("--max-step-tokens", "tokens of one engine step (default: 512)"),
        ("--tensor-parallel-size", "ranks (default: 1)"),
    ):
        group.add_argument(option, metavar=option.rpartition("-")[2].upper(), help=text)


def _config(given: dict[str, Any]) -> ExportConfig:
    whole = values.whole(1, 10**9)
    names = ("max_model_len", "max_num_seqs", "max_step_tokens", "tensor_parallel_size", "threads")
    readers = {**dict.fromkeys(names, whole), "layout_budget": values.size(0)}
    for name, read in readers.items():
        if name in given:
            try:
                given[name] = read(given[name])
            except ValueError as exc:
                raise SettingsError(f"--{name.replace('_', '-')} {exc}") from exc
    return ExportConfig(**given)


def _level() -> str:
    debug = os.environ.get("FLARE_LOG_LEVEL", "").strip().lower() == "debug"
    return logging.getLevelName(logging.DEBUG if debug else logging.INFO)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """End as Ctrl-C does, so that nothing half-written stays."""
    raise KeyboardInterrupt
