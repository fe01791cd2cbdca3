"""Reasoning before an answer: which marks a model family puts around it, and where they stand."""

from collections.abc import Callable
from enum import Enum

from app.serving.tools.marked import overlap

MARKS = {
    "think": ("<think>", "</think>"),
    "mistral": ("[THINK]", "[/THINK]"),
    "seed": ("<seed:think>", "</seed:think>"),
    "cohere": ("<|START_THINKING|>", "<|END_THINKING|>"),
}
"""By name of the parser: the marks before and behind reasoning."""


def detect(template: str) -> str | None:
    """The name whose marks a chat template writes or looks for; None when it knows none."""
    for name, marks in MARKS.items():
        if any(mark in template for mark in marks):
            return name
    return None


class Where(Enum):
    """Where an answer begins, seen from its prompt, or where reading it has come to."""

    OPEN = 0  # the model may begin with reasoning, or not
    INSIDE = 1
    BEHIND = 2


def place(prompt: str, marks: tuple[str, str], *, continues: str | None = None) -> Where:
    """Where the answer to a rendered prompt begins.

    A template that turns thinking off ends the prompt with closed marks; one that forces it ends
    with the first mark. continues: the text of the last message, when the answer goes on with it.
    """
    begin, end = marks
    if continues is not None:
        return Where.INSIDE if continues.rfind(begin) > continues.rfind(end) else Where.BEHIND
    tail = prompt.rstrip()
    if tail.endswith(begin):
        return Where.INSIDE
    return Where.BEHIND if tail.endswith(end) else Where.OPEN


class ReasoningSplit:
    """Takes reasoning off the front of a text that arrives in parts.

    White space around the marks belongs to neither side.
    """

    def __init__(
        self,
        marks: tuple[str, str],
        where: Where,
        on_reasoning: Callable[[str], None],
        on_text: Callable[[str], None],
    ) -> None:
        self.where = where
        self._begin, self._end = marks
        self._on_reasoning = on_reasoning
        self._on_text = on_text
        self._held = ""
        self._fresh = True  # nothing of this side has been given out

    def push(self, text: str) -> None:
        """Take more text."""
        if self.where is Where.BEHIND and not self._fresh:
            self._on_text(text)
            return
        text, self._held = self._held + text, ""
        if self.where is Where.OPEN:
            text = self._opening(text)
        if self.where is Where.INSIDE:
            text = self._inside(text)
        if self.where is Where.BEHIND and text:
            self._behind(text)

    def finish(self) -> None:
        """End of the text: what was held back belongs to where it stands."""
        held, self._held = self._held, ""
        if held:
            (self._on_reasoning if self.where is Where.INSIDE else self._on_text)(held)

    def _opening(self, text: str) -> str:
        """Decide whether the text begins with the first mark; return what is behind it."""
        rest = text.lstrip()
        if rest.startswith(self._begin):
            self.where = Where.INSIDE
            return rest[len(self._begin) :]
        if self._begin.startswith(rest):
            self._held = text
            return ""
        self.where, self._fresh = Where.BEHIND, False
        self._on_text(text)
        return ""

    def _inside(self, text: str) -> str:
        """Pass reasoning on up to the second mark; return what is behind it."""
        if self._fresh:
            text = text.lstrip()
        at = text.find(self._end)
        if at >= 0:
            self._think(text[:at].rstrip())
            self.where, self._fresh = Where.BEHIND, True
            return text[at + len(self._end) :]
        sure = text[: len(text) - overlap(text, self._end)].rstrip()
        self._held = text[len(sure) :]
        self._think(sure)
        return ""

    def _think(self, text: str) -> None:
        if text:
            self._fresh = False
            self._on_reasoning(text)

    def _behind(self, text: str) -> None:
        """The answer's text, without the white space behind the mark."""
        text = text.lstrip()
        if text:
            self._fresh = False
            self._on_text(text)
