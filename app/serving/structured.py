"""Grammars of the sequences of a request: which one is asked for, compiled off the event loop."""

from app.errors import bad_field
from app.protocol.structured import StructuredFields
from app.serving.context import ServingContext
from engine.errors import GrammarError
from engine.types import CompiledGrammar, GrammarSpec


def asked_grammar(fields: StructuredFields) -> GrammarSpec | None:
    """What the fields say of the text. Raises ApiError (400) when more than one does."""
    grammars = fields.grammars
    if len(grammars) > 1:
        raise bad_field(str(grammars[1].param), f"and {grammars[0].param} exclude each other")
    return grammars[0] if grammars else None


async def compiled(context: ServingContext, spec: GrammarSpec | None) -> CompiledGrammar | None:
    """The compiled form of a grammar, if one is asked for.

    Raises ApiError (400) naming the request field and what is wrong with the grammar in it. To be
    called before lengths are checked: a wrong grammar stays wrong in a shorter request.
    """
    if spec is None:
        return None
    try:
        return await context.grammars.compile(spec)
    except GrammarError as error:
        raise bad_field(error.param or "grammar", str(error)) from None
