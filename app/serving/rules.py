"""Rules that join several request fields."""

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
    """The tools of a request and which of them to call.

    Raises ApiError (400, param tool_choice) for a choice that they do not allow.
    """
    tools: tuple[FunctionTool, ...] = request.tools or ()
    choice: ToolChoice = request.tool_choice or AUTO
    if choice.forced and not tools:
        raise bad_field("tool_choice", "is only allowed together with tools")
    if choice.name is not None and choice.name not in {tool.name for tool in tools}:
        raise bad_field("tool_choice", "names a function that is not among the tools")
    return tools, choice
