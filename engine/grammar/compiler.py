"""Compile grammars in threads of their own, and remember them.

``GrammarCompiler`` belongs to the serving layer (``ServingContext.grammars``)::

    grammar = await context.grammars.compile(spec)   # GrammarError: tell the client

Nothing is imported or built before the first grammar is asked for.
"""

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from engine.errors import GrammarError
from engine.grammar.limits import COMPILE_SECONDS
from engine.text.tokenizer import Tokenizer
from engine.types import CompiledGrammar, GrammarSpec

if TYPE_CHECKING:  # these load with the first grammar: starts stay short
    from concurrent.futures import ThreadPoolExecutor

    from engine.grammar.compiled import Grammar
    from engine.grammar.native import NativeCompiler

P = ParamSpec("P")
T = TypeVar("T")

REMEMBERED = 128
"""Compiled grammars that are kept, the most recently used ones."""
REMEMBERED_TEXT = 2 << 20
"""Characters of their sources together, which bounds the memory that they take."""
_THREADS = 2
_STACK_BYTES = 64 << 20
"""llguidance follows references and rules by recursion, up to thousands deep."""


class GrammarCompiler:
    """Compiles each grammar once. All methods are called on one event loop.

    vocab_size: ids that may be sampled. eos_ids: the model's end tokens.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, eos_ids: Collection[int]) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._eos_ids = frozenset(eos_ids)
        self._known: OrderedDict[GrammarSpec, CompiledGrammar] = OrderedDict()
        self._text = 0
        self._running: dict[GrammarSpec, asyncio.Future[CompiledGrammar]] = {}
        self._pool: ThreadPoolExecutor | None = None
        self._native: asyncio.Future[NativeCompiler] | None = None
        self._turns = asyncio.Semaphore(_THREADS)

    async def compile(self, spec: GrammarSpec) -> CompiledGrammar:
        """Return the compiled grammar.

        Raises GrammarError when the grammar is not valid, not supported, too large, or takes
        longer than ``COMPILE_SECONDS``.
        """
        known = self._known.get(spec)
        if known is not None:
            self._known.move_to_end(spec)
            return known
        running = self._running.get(spec)
        if running is None:
            running = asyncio.ensure_future(self._compile(spec))
            self._running[spec] = running
            running.add_done_callback(lambda done: self._end(spec, done))
        try:
            return await asyncio.shield(running)
        except GrammarError as error:  # the first asker's field is not everyone's
            raise GrammarError(str(error), spec.param) from None

    async def _compile(self, spec: GrammarSpec) -> CompiledGrammar:
        native = await self._load()
        await self._turns.acquire()
        work = self._in_thread(native.compile, spec)
        work.add_done_callback(self._give_back)
        done, _ = await asyncio.wait((work,), timeout=COMPILE_SECONDS)
        if not done:  # a thread cannot be ended; the limits on size bound what it still does
            raise GrammarError(
                f"is too complex: compiling it takes longer than {COMPILE_SECONDS:g} s"
            )
        compiled = work.result()
        self._remember(spec, compiled)
        return compiled

    def _end(self, spec: GrammarSpec, done: "asyncio.Future[CompiledGrammar]") -> None:
        del self._running[spec]
        if not done.cancelled():
            done.exception()  # all who asked may have left: then nobody else reads it

    def _remember(self, spec: GrammarSpec, compiled: CompiledGrammar) -> None:
        self._known[spec] = compiled
        self._text += len(spec.text)
        while len(self._known) > REMEMBERED or self._text > REMEMBERED_TEXT:
            oldest, _ = self._known.popitem(last=False)
            self._text -= len(oldest.text)

    def _give_back(self, work: "asyncio.Future[Grammar]") -> None:
        self._turns.release()
        if not work.cancelled():
            work.exception()  # nobody may be left to read it

    async def _load(self) -> "NativeCompiler":
        if self._native is None:
            self._native = self._in_thread(self._build)
        return await asyncio.shield(self._native)

    def _build(self) -> "NativeCompiler":
        # Not at the top: a start without grammars does not pay for it.
        from engine.grammar.native import NativeCompiler

        return NativeCompiler(self._tokenizer, self._vocab_size, self._eos_ids)

    def _in_thread(
        self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> asyncio.Future[T]:
        """Run a call in the pool, whose threads are made with a deep stack."""
        if self._pool is None:
            from concurrent.futures import ThreadPoolExecutor

            self._pool = ThreadPoolExecutor(_THREADS, "flare-grammar")
        before = threading.stack_size(_STACK_BYTES)
        try:
            return asyncio.wrap_future(self._pool.submit(call, *args, **kwargs))
        finally:
            threading.stack_size(before)
