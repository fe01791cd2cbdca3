"""Rules that join several request fields."""

from collections.abc import Sequence

from app.errors import bad_field
from app.protocol.sampling import GenerationFields
from app.protocol.tools import AUTO, FunctionTool, ToolChoice, ToolFields
from app.serving.context import ServingContext


def check_stream_options(request: GenerationFields) -> None:
    """Raise ApiError (400) for stream options without a stream, and for padding of chunks."""
    options = request.stream_options
    if options is None:
        return
    if not request.stream:
        raise bad_field("stream_options", "is only allowed when stream is true")
    if options.include_obfuscation:
        raise bad_field("stream_options", "include_obfuscation is not supported")


def check_prompt_logprobs(request: GenerationFields) -> None:
    """Raise ApiError (400) for log probabilities of the prompt in a stream."""
    if request.stream and request.prompt_logprobs is not None:
        raise bad_field("prompt_logprobs", "is not supported when stream is true")


def includes_usage(request: GenerationFields) -> bool:
    """Whether a stream ends with a usage chunk."""
    options = request.stream_options
    return options is not None and bool(options.include_usage)


def check_choices(context: ServingContext, prompts: int, n: int) -> None:
    """Raise ApiError (400, param n) when one request would start too many sequences."""
    if prompts * n > context.max_choices:
        limit = context.max_choices
        raise bad_field("n", f"times the number of prompts is {prompts * n}, more than {limit}")


def may_reason(context: ServingContext) -> bool:
    """Whether answers may hold reasoning; a first look, so that plain ones pay for no more."""
    if context.reasoning_parser != "auto":
        return context.reasoning_parser != "none"
    return "think" in context.template_source.lower()


def asked_tools(request: ToolFields) -> tuple[tuple[FunctionTool, ...], ToolChoice]:
    """The tools of a request and which of them to call. Raises as ``check_tools``."""
    tools: tuple[FunctionTool, ...] = request.tools or ()
    choice: ToolChoice = request.tool_choice or AUTO
    check_tools(tools, choice)
    return tools, choice


def check_tools(tools: Sequence[FunctionTool], choice: ToolChoice) -> None:
    """Raise ApiError (400) for a name given twice and for a choice that the tools do not allow."""
    names = [tool.name for tool in tools]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise bad_field("tools", f"has more than one tool named {min(twice)!r}")
    if choice.forced and not tools:
        raise bad_field("tool_choice", "is only allowed together with tools")
    if choice.mode == "named" and choice.name not in names:
        raise bad_field("tool_choice", "names a tool that is not among the tools")
