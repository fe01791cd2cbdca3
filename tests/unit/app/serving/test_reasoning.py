"""Reasoning before an answer: where it begins by the prompt, and how it is split off."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.serving import reasoning
from app.serving.reasoning import MARKS, ReasoningSplit, Where

THINK = MARKS["think"]


def split(where: Where, pieces: list[str]) -> tuple[str, str]:
    thought: list[str] = []
    told: list[str] = []
    machine = ReasoningSplit(THINK, where, thought.append, told.append)
    for piece in pieces:
        machine.push(piece)
    machine.finish()
    return "".join(thought), "".join(told)


@pytest.mark.parametrize(
    ("where", "text", "expected"),
    [
        (Where.OPEN, "<think>\nhm, so\n</think>\n\nYes.", ("hm, so", "Yes.")),
        (Where.OPEN, "\n<think>hm</think>Yes. <think>x</think>", ("hm", "Yes. <think>x</think>")),
        (Where.OPEN, "Yes.", ("", "Yes.")),
        (Where.OPEN, "<thin ice", ("", "<thin ice")),
        (Where.OPEN, "<thin", ("", "<thin")),
        (Where.OPEN, "  ", ("", "  ")),
        (Where.OPEN, "<think></think>\n{}", ("", "{}")),
        (Where.INSIDE, "so a < b </b> \n</think>\n {} ", ("so a < b </b>", "{} ")),
        (Where.INSIDE, "never ending </thi", ("never ending </thi", "")),
        (Where.BEHIND, "<think>text", ("", "<think>text")),
    ],
)
def test_the_same_at_every_split(where: Where, text: str, expected: tuple[str, str]) -> None:
    assert split(where, [text]) == expected
    assert split(where, list(text)) == expected
    for cut in range(len(text) + 1):
        assert split(where, [text[:cut], text[cut:]]) == expected


@given(
    st.sampled_from(list(Where)),
    st.lists(
        st.sampled_from(["<think>", "</think>", "<", "thi", " ", "\n", "x", "</"]), max_size=9
    ),
    st.lists(st.integers(0, 40), max_size=4),
)
def test_any_text_splits_the_same(where: Where, pieces: list[str], cuts: list[int]) -> None:
    text = "".join(pieces)
    ends = [0, *sorted({min(cut, len(text)) for cut in cuts}), len(text)]
    parts = [text[a:b] for a, b in pairwise(ends)]
    assert split(where, parts) == split(where, [text]) == split(where, list(text))


@pytest.mark.parametrize(
    ("prompt", "where"),
    [
        ("...<|im_start|>assistant\n", Where.OPEN),
        ("...<|im_start|>assistant\n<think>\n", Where.INSIDE),
        ("...<|im_start|>assistant\n<think>\n\n</think>\n\n", Where.BEHIND),
        ("user said <think>\nassistant:", Where.OPEN),
    ],
)
def test_the_prompt_tells_where_an_answer_begins(prompt: str, where: Where) -> None:
    """H41: not the model's name."""
    assert reasoning.place(prompt, THINK) is where


def test_a_continued_message_tells_by_its_text() -> None:
    assert reasoning.place("", THINK, continues="<think>so far") is Where.INSIDE
    assert reasoning.place("", THINK, continues="<think>a</think> so") is Where.BEHIND
    assert reasoning.place("", THINK, continues="It is") is Where.BEHIND


def test_marks_are_found_in_templates() -> None:
    assert reasoning.detect("{{ '</think>' in content }}") == "think"
    assert reasoning.detect("[THINK]") == "mistral"
    assert reasoning.detect("{{ content }}") is None
