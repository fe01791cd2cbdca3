"""How many tokens a request may generate, and whether it fits the context."""

from app.errors import ApiError


def completion_budget(
    prompt_tokens: int, asked: int | None, default: int | None, context_length: int, param: str
) -> int:
    """Tokens to generate: what was ``asked``, or ``default`` cut to what is left of the context.

    ``default`` None is all that is left. Raises ApiError (400, context_length_exceeded) naming
    the limit, the prompt's and the asked tokens when they do not fit together.
    """
    left = context_length - prompt_tokens
    if asked is not None:
        if asked > left:
            raise _too_long(prompt_tokens, asked, context_length, param)
        return asked
    if left < 1:
        raise _too_long(prompt_tokens, 1, context_length, param)
    return left if default is None else min(default, left)


def _too_long(prompt: int, completion: int, limit: int, param: str) -> ApiError:
    message = (
        f"The context length is {limit} tokens, but this request needs {prompt + completion}: "
        f"{prompt} for the prompt and {completion} for the completion. Shorten the prompt or ask "
        "for fewer tokens."
    )
    return ApiError(400, message, param=param, code="context_length_exceeded")
