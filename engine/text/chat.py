"""Chat templates: messages to the prompt text that the model was trained on."""

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any

from jinja2 import TemplateSyntaxError
from jinja2.exceptions import SecurityError

from engine.errors import CoreError, RequestError
from engine.text.fallback import TemplateAbilities, adapt_messages, probe_abilities
from engine.text.info import TEMPLATE_FILE
from engine.text.sandbox import RaisedByTemplate, build_environment

MAX_SOURCE_CHARS = 1 << 20
MAX_OUTPUT_CHARS = 1 << 26
MAX_SECONDS = 30.0
_END_MARK = "\ue000end of the final message\ue001"  # private-use characters: in no real message
_RESERVED = frozenset(["messages", "tools"])
_QUESTION = {"role": "user", "content": "probe question"}
_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "probe_function",
        "description": "probe description",
        "parameters": {"type": "object", "properties": {"probe_key": {"type": "string"}}},
    },
}

Message = Mapping[str, Any]


class TemplateError(RequestError):
    """These messages cannot be rendered; says why in the template's words, never its source."""


class ChatTemplate:
    """A compiled chat template. Safe to use from several threads.

    special_tokens: names that the template may use and their text (``bos_token`` ...).
    Raises CoreError if the source does not compile.
    """

    def __init__(
        self,
        source: str,
        special_tokens: Mapping[str, str],
        *,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        if len(source) > MAX_SOURCE_CHARS:
            raise CoreError(f"{TEMPLATE_FILE} is longer than {MAX_SOURCE_CHARS} characters")
        self.source = source
        self._special = dict(special_tokens)
        try:
            self._template = build_environment(now).from_string(source)
        except TemplateSyntaxError as error:
            raise CoreError(
                f"{TEMPLATE_FILE}, line {error.lineno}: {error.message}",
                "The model's chat template is not valid Jinja.",
            ) from error
        except (RecursionError, SyntaxError, MemoryError) as error:
            raise CoreError(f"{TEMPLATE_FILE} nests too deep to compile") from error

    @cached_property
    def abilities(self) -> TemplateAbilities:
        """What the template does with tool calls and null content (probed once)."""
        return probe_abilities(self._probe)

    @cached_property
    def knows_tools(self) -> bool:
        """Whether the template writes tools into the prompt (probed once)."""
        try:
            return _TOOL["function"]["name"] in self._run([_QUESTION], [_TOOL], True, {})
        except TemplateError:
            return False

    @cached_property
    def knows_system(self) -> bool:
        """Whether a conversation may begin with a system message (probed once)."""
        text = "probe instructions"
        return text in (self._probe([{"role": "system", "content": text}, _QUESTION]) or "")

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        /,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **variables: Any,
    ) -> str:
        """Return the prompt text of a conversation.

        Messages reach the template as they are; only keys whose value is null are left out, and a
        template that cannot express null content or tool calls gets them as text
        (``fallback.adapt_messages``). continue_final_message: end inside the last message, whose
        content must be text, so that the model goes on with it. ``variables``: further names for
        the template. Raises TemplateError.
        """
        if continue_final_message and add_generation_prompt:
            raise TemplateError(
                "continue_final_message and add_generation_prompt cannot both be true"
            )
        taken = _RESERVED & variables.keys()
        if taken:
            raise TemplateError(f"template variable {min(taken)!r} cannot be set")
        chat = self._adapted(messages)
        if continue_final_message:
            return self._continued(chat, tools, variables)
        return self._run(chat, tools, add_generation_prompt, variables)

    def _adapted(self, messages: Sequence[Message]) -> list[dict[str, Any]]:
        chat = [{k: v for k, v in m.items() if v is not None or k == "content"} for m in messages]
        needs_care = any(m.get("content") is None or m.get("tool_calls") for m in chat)
        return adapt_messages(chat, self.abilities) if needs_care else chat

    def _continued(
        self,
        chat: list[dict[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        variables: Mapping[str, Any],
    ) -> str:
        """Render with a mark behind the last content, then cut there."""
        content = chat[-1].get("content") if chat else None
        if not isinstance(content, str):
            raise TemplateError("continue_final_message needs a last message whose content is text")
        chat[-1]["content"] = f"{content}{_END_MARK} "
        before, mark, after = self._run(chat, tools, False, variables).rpartition(_END_MARK)
        if not mark:
            raise TemplateError("the chat template leaves out the text of the last message")
        # The space behind the mark is gone where the template trims contents: trim ours, too.
        return before if after.startswith(" ") else before.rstrip()

    def _run(
        self,
        chat: list[dict[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        add_generation_prompt: bool,
        variables: Mapping[str, Any],
    ) -> str:
        """Render within the bounds on time and size, and translate what goes wrong."""
        names = {
            **self._special,
            **variables,
            "messages": chat,
            "tools": list(tools) if tools else None,
            "add_generation_prompt": add_generation_prompt,
        }
        deadline = time.monotonic() + MAX_SECONDS
        parts: list[str] = []
        size = 0
        try:
            for part in self._template.generate(names):
                parts.append(part)
                size += len(part)
                if size > MAX_OUTPUT_CHARS or time.monotonic() > deadline:
                    raise TemplateError("the chat template takes too long on these messages")
        except RequestError:
            raise
        except RaisedByTemplate as error:
            raise TemplateError(str(error)[:1000]) from error
        except SecurityError as error:
            raise TemplateError("the chat template does something that is not allowed") from error
        except Exception as error:  # a template can fail in any way that Python can
            raise TemplateError(_reason(error)) from error
        return "".join(parts)

    def _probe(self, messages: list[dict[str, Any]]) -> str | None:
        """Render a sample; None if the template refuses it."""
        try:
            return self._run(messages, None, False, {})
        except TemplateError:
            return None


def _reason(error: Exception) -> str:
    detail = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
    return f"the chat template cannot render these messages: {detail}"
