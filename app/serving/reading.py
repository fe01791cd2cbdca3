"""How the answer to a rendered prompt is read, and what grammar holds it to the tools."""

from collections.abc import Sequence

from msgspec.structs import replace

from app.protocol.tools import FunctionTool, ToolChoice
from app.serving import reasoning
from app.serving.context import ServingContext
from app.serving.reader import ReadingPlan
from app.serving.reasoning import Where
from app.serving.tools import families
from app.serving.tools.forced import forced_calls
from engine.types import GrammarSpec

AUTO, NONE = "auto", "none"


def reading_plan(
    context: ServingContext, prompt: str, continues: str | None, *, grammar: bool
) -> ReadingPlan | None:
    """How reasoning is read; None when the model does not reason.

    continues: the text of the last message, when the answer goes on with it. grammar: the answer
    follows one: a model that only might reason then does not.
    """
    name = reasoning_parser(context)
    if name is None:
        return None
    marks = reasoning.MARKS[name]
    where = reasoning.place(prompt, marks, continues=continues)
    if where is Where.BEHIND or (grammar and where is Where.OPEN):
        return None
    return ReadingPlan(marks=marks, where=where, shown=marks)


def with_calls(
    plan: ReadingPlan | None,
    context: ServingContext,
    tools: Sequence[FunctionTool],
    choice: ToolChoice,
    *,
    parallel: bool,
) -> ReadingPlan | None:
    """The plan with a parser of calls: the family's own, or that of the form of forced calls."""
    name = families.DEFAULT if choice.forced else tool_parser(context)
    if name is None:
        return plan
    family = families.load(name)
    native = family if name == tool_parser(context) else families.load(native_name(context))
    plan = plan or ReadingPlan()
    return replace(
        plan,
        parser=family.parser,
        names=frozenset(tool.name for tool in tools),
        parallel=parallel and choice.mode != "named",
        new_id=native.new_id,
        shown=(*plan.shown, *family.marks),
    )


def calls_grammar(
    plan: ReadingPlan | None,
    tools: Sequence[FunctionTool],
    choice: ToolChoice,
    *,
    parallel: bool,
) -> GrammarSpec:
    """What an answer must be whose calls are forced."""
    chosen = [tool for tool in tools if choice.mode == "required" or tool.name == choice.name]
    several = parallel and choice.mode == "required"
    return forced_calls(chosen, parallel=several, after=reasoning_end(plan))


def reasoning_end(plan: ReadingPlan | None) -> str | None:
    """The mark behind the reasoning that an answer begins within."""
    inside = plan is not None and plan.where is Where.INSIDE
    return plan.marks[1] if inside and plan is not None and plan.marks is not None else None


def reasoning_parser(context: ServingContext) -> str | None:
    """The name of the marks that the model reasons between; None when it does not reason."""
    name = context.reasoning_parser
    if name == AUTO:
        return reasoning.detect(context.template_source)
    return None if name == NONE else name


def tool_parser(context: ServingContext) -> str | None:
    """The name of the family in whose form calls are looked for; None: they are not."""
    return None if context.tool_parser == NONE else native_name(context)


def native_name(context: ServingContext) -> str:
    """The family in whose form the model writes calls."""
    if context.tool_parser in (AUTO, NONE):
        return families.detect(context.template_source)
    return context.tool_parser
