"""Rules that join several request fields."""

from app.errors import bad_field
from app.protocol.sampling import GenerationFields
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


def includes_usage(request: GenerationFields) -> bool:
    """Whether a stream ends with a usage chunk."""
    options = request.stream_options
    return options is not None and bool(options.include_usage)


def check_choices(context: ServingContext, prompts: int, n: int) -> None:
    """Raise ApiError (400, param n) when one request would start too many sequences."""
    if prompts * n > context.max_choices:
        limit = context.max_choices
        raise bad_field("n", f"times the number of prompts is {prompts * n}, more than {limit}")
