"""What becomes of one core: refused with a name, the same service, or another valid core."""

import asyncio
import contextlib
import io
import logging
import re
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

from app.commands import inspect
from engine.client import Engine
from engine.config import EngineConfig
from engine.errors import CoreError, EngineUnavailableError, FlareError, RequestError
from engine.factory import load_engine
from engine.text.assets import TextAssets, load_text
from engine.types import FinishReason, GenerationRequest, SamplingParams, TokenStream
from engine.verification import verify_core

PROMPTS = ((3, 5, 7), tuple(range(1, 14)))
TEXT = "Hello, world: 1 + 1 = 2\n"
Kind = Literal["refused", "identical", "different", "bad"]


class Verdict(Struct, frozen=True):
    """kind, and what: the error's class, or what is wrong."""

    kind: Kind
    what: str = ""


class Service(Struct, frozen=True):
    """What a core serves: token ids and log probabilities of requests, ids and text of a text."""

    answers: tuple[Any, ...]
    text: tuple[Any, ...]


def served(core: Path) -> Service:
    """Load a core and serve two tokens each to two requests. Raises FlareError."""
    text: list[TextAssets] = []
    engine = load_engine(
        EngineConfig(core=core, threads=1),
        on_instantiated=lambda files: text.append(load_text(files)),
    )
    return Service(asyncio.run(_answers(engine)), _texts(text[0]))


async def _answers(engine: Engine) -> tuple[Any, ...]:
    engine.start()
    try:
        sampling = SamplingParams(max_tokens=2, temperature=0.0, ignore_eos=True, logprobs=1)
        requests = [GenerationRequest(str(i), ids, sampling) for i, ids in enumerate(PROMPTS)]
        return tuple(await asyncio.gather(*map(_answer, engine.submit(requests))))
    finally:
        await engine.close()


async def _answer(stream: TokenStream) -> tuple[Any, ...]:
    deltas = [delta async for delta in stream]
    if deltas[-1].finish_reason is FinishReason.ERROR:
        return (deltas[-1].error,)
    return tuple((delta.token_ids, delta.logprobs) for delta in deltas)


def _texts(text: TextAssets) -> tuple[Any, ...]:
    ids = text.tokenizer.encode(TEXT)
    return tuple(ids), text.tokenizer.decode(ids)


def judge(core: Path, expected: Service, sealed: bool, named: bool = False) -> Verdict:
    """Serve a corrupted core, as ``flare run`` would; what differs must pass ``flare verify``.

    sealed: its digests are right, so that it may be another valid core, or one that this machine
    or run cannot serve. named: names in it may have changed, so it is inspected, too. Never
    raises.
    """
    try:
        found = served(core)
    except FlareError as error:
        return _refusal(error, sealed)
    except BaseException as error:  # the point of the run: nothing else may come out
        return Verdict("bad", f"{type(error).__name__}: {str(error)[:200]}")
    if found == expected:
        return _inspected(core) if named else Verdict("identical")
    if not sealed:
        return Verdict("bad", "served other values from bytes that are not as exported")
    return _verified(core)


def _inspected(core: Path) -> Verdict:
    """Whatever the names in a core are, people can read what it holds."""
    shown = io.StringIO()
    try:
        with contextlib.redirect_stdout(shown):
            inspect.main([str(core)])
    except BaseException as error:
        return Verdict("bad", f"inspect: {type(error).__name__}: {str(error)[:200]}")
    if not all(line.isprintable() for line in shown.getvalue().split("\n")):
        return Verdict("bad", "inspect prints what does not print")
    return Verdict("identical")


def _verified(core: Path) -> Verdict:
    try:
        verify_core(core)
    except CoreError as error:
        return Verdict("refused", f"verify: {type(error).__name__}")
    except BaseException as error:
        return Verdict("bad", f"verify: {type(error).__name__}: {str(error)[:200]}")
    return Verdict("different")


def _refusal(error: FlareError, sealed: bool) -> Verdict:
    """A core's own fault is a CoreError that says what was expected, or what is wrong where."""
    name, message = type(error).__name__, str(error)
    if isinstance(error, RequestError):
        if isinstance(error, EngineUnavailableError) or not sealed:
            return Verdict("bad", f"{name}: {message[:200]}")
        return Verdict("different", name)
    if not sealed and not isinstance(error, CoreError):
        return Verdict("bad", f"{name}: {message[:200]}")
    if "\n" in message or len(message) > 2100 or not message.isprintable():
        return Verdict("bad", f"{name}: a message for no one: {message[:200]!a}")
    if isinstance(error, CoreError) and not re.search(r"\S", message):
        return Verdict("bad", f"{name} without a message")
    return Verdict("refused", name)


def quiet() -> None:
    """Say nothing of each load."""
    logging.getLogger("flare").setLevel(logging.CRITICAL + 1)
