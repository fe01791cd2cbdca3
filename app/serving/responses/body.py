"""The response object: what was asked for, and what came of it."""

import time
from typing import Any

from app.protocol.responses import ResponseRequest, ResponseTool, TextFormat
from app.serving.wire import Usage
from engine.text.info import GenerationDefaults


def new_body(
    response_id: str, request: ResponseRequest, defaults: GenerationDefaults, *, store: bool
) -> dict[str, Any]:
    """The object of a response that has just begun; values left out are told as they apply."""
    text = request.text
    reasoning = request.reasoning
    return {
        "id": response_id,
        "object": "response",
        "created_at": int(time.time()),
        "status": "in_progress",
        "background": False,
        "completed_at": None,
        "error": None,
        "incomplete_details": None,
        "instructions": request.instructions,
        "max_output_tokens": request.max_output_tokens,
        "max_tool_calls": None,
        "metadata": request.metadata or {},
        "model": request.model,
        "output": [],
        "parallel_tool_calls": request.parallel_tool_calls is not False,
        "previous_response_id": request.previous_response_id,
        "prompt_cache_key": request.prompt_cache_key,
        "reasoning": {"effort": reasoning.effort if reasoning else None, "summary": None},
        "safety_identifier": request.safety_identifier,
        "service_tier": "default",
        "store": store,
        "temperature": _applied(request.temperature, defaults.temperature),
        "text": {"format": _format(text.format if text else None), "verbosity": "medium"},
        "tool_choice": "auto" if request.tool_choice is None else request.tool_choice,
        "tools": [_tool(tool) for tool in request.tools or ()],
        "top_logprobs": request.top_logprobs or 0,
        "top_p": _applied(request.top_p, defaults.top_p),
        "truncation": "disabled",
        "usage": None,
        "user": request.user,
    }


def finish_body(body: dict[str, Any], usage: Usage) -> None:
    """Add the counts, and when it was completed."""
    body["usage"] = {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {
            "cached_tokens": usage.cached_tokens,
            "cache_write_tokens": 0,
        },
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
    if body["status"] == "completed":
        body["completed_at"] = int(time.time())


def _applied(asked: float | None, model: float | None) -> float:
    return asked if asked is not None else 1.0 if model is None else model


def _format(asked: TextFormat | None) -> dict[str, Any]:
    if asked is None or asked.type != "json_schema":
        return {"type": "text" if asked is None else asked.type}
    return {
        "type": asked.type,
        "name": asked.name,
        "description": asked.description,
        "schema": asked.schema_,
        "strict": asked.strict,
    }


def _tool(tool: ResponseTool) -> dict[str, Any]:
    return {
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
        "strict": bool(tool.strict),
    }
