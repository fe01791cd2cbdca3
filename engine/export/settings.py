"""What an export is asked to do, checked before any work."""

from pathlib import Path

from msgspec import Struct

from engine.core.schema import DeviceName, Limits, Tuning
from engine.errors import SettingsError
from engine.export.weights import Activations, Quantization

DEFAULT_CONTEXT = 8192
"""Largest context length that is taken without being asked for."""
MAX_NUM_SEQS = 4096
MAX_STEP_TOKENS = 65536
MAX_MODEL_LEN = 1 << 20
MAX_THREADS = 1024


class ExportConfig(Struct, frozen=True):
    """One export. None: the default that depends on the checkpoint.

    model: a GGUF file, a Hugging Face directory, or "smollm2". mixed_prefill: capture the mixed
    family too, and serve it unless a run says otherwise. quantization: "keep" (GGUF's default)
    stores what the checkpoint stores, "none" (the default otherwise) bfloat16. activations: what
    generated rows (and the head's) are rounded to where weights are quantised. threads: of the
    measurements (None: the physical cores). layout_budget: bytes that second layouts of weights,
    for prompts, may add to the core where they are measured to save time. step_times: time
    replays, for forecasts, though the profile would not. resume: take over the journal of an
    interrupted export.
    """

    model: str
    output: Path
    tuning: Tuning = "fast"
    device: DeviceName = "cpu"
    mixed_prefill: bool = True
    quantization: Quantization | None = None
    activations: Activations = "int12"
    max_model_len: int | None = None
    max_num_seqs: int = 64
    max_step_tokens: int = 512
    tensor_parallel_size: int = 1
    threads: int | None = None
    layout_budget: int = 0
    step_times: bool = False
    resume: bool = False
    overwrite: bool = False


def check_config(config: ExportConfig) -> None:
    """Raise SettingsError for a setting that is out of range or not supported, by its flag."""
    refused = {
        f"--device {config.device}": config.device != "cpu",
        f"--tensor-parallel-size {config.tensor_parallel_size}": config.tensor_parallel_size != 1,
    }
    for flag, wanted in refused.items():
        if wanted:
            raise SettingsError(
                f"{flag} is not supported by this version",
                "Supported: --device cpu, --tensor-parallel-size 1.",
            )
    _check_range("--max-num-seqs", config.max_num_seqs, MAX_NUM_SEQS)
    _check_range("--max-step-tokens", config.max_step_tokens, MAX_STEP_TOKENS)
    if config.max_model_len is not None:
        _check_range("--max-model-len", config.max_model_len, MAX_MODEL_LEN)
    if config.layout_budget < 0:
        raise SettingsError(f"--layout-budget must be 0 or more, found {config.layout_budget}")
    if config.layout_budget and config.tuning == "fast":
        raise SettingsError(
            "--layout-budget needs --tuning balanced or audit: it is spent on what is measured"
        )
    if config.threads is not None:
        _check_range("--threads", config.threads, MAX_THREADS)
    if config.max_step_tokens < config.max_num_seqs:
        raise SettingsError(
            f"--max-step-tokens {config.max_step_tokens} is below --max-num-seqs "
            f"{config.max_num_seqs}: a step must hold one token of every sequence"
        )


def resolve_limits(config: ExportConfig, context_length: int) -> Limits:
    """Return the limits of the core. Raises SettingsError when the model's context is too short."""
    wanted = config.max_model_len or min(context_length, DEFAULT_CONTEXT)
    if wanted > context_length:
        raise SettingsError(
            f"--max-model-len {wanted} is more than the model's context of {context_length} tokens"
        )
    return Limits(config.max_num_seqs, wanted, config.max_step_tokens)


def _check_range(flag: str, value: int, largest: int) -> None:
    if not 1 <= value <= largest:
        raise SettingsError(f"{flag} must be 1 to {largest}, found {value}")
