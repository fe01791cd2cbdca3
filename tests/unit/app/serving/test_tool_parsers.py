"""Parsers of tool calls: the same wherever the text is cut, nothing lost, no call invented."""

import json
from collections.abc import Collection, Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.serving.tools import families, pythonic
from app.serving.tools.sink import MakeParser

NAMES = frozenset(["w", "get_time"])
Part = tuple[str, str]


class Record:
    """A sink that joins what belongs together."""

    def __init__(self) -> None:
        self.parts: list[Part] = []

    def text(self, text: str) -> None:
        self._add("text", text)

    def start(self, name: str) -> None:
        self.parts.append(("start", name))

    def arguments(self, text: str) -> None:
        assert text
        self._add("arguments", text)

    def end(self) -> None:
        self.parts.append(("end", ""))

    def _add(self, kind: str, text: str) -> None:
        if text and self.parts and self.parts[-1][0] == kind:
            self.parts[-1] = (kind, self.parts[-1][1] + text)
        elif text:
            self.parts.append((kind, text))


def read(make: MakeParser, pieces: Sequence[str], names: Collection[str] = NAMES) -> list[Part]:
    record = Record()
    parser = make(names, record)
    for piece in pieces:
        parser.push(piece)
    parser.finish()
    return record.parts


def call(name: str, arguments: str) -> list[Part]:
    return [("start", name), ("arguments", arguments), ("end", "")]


HERMES = [
    (
        '<tool_call>{"name":"w","arguments":{"city":"A}","unit":"c","n":3}}</tool_call>',
        call("w", '{"city":"A}","unit":"c","n":3}'),
    ),
    (
        'Well.\n<tool_call>\n{"arguments": {"a": [1, "]"]}, "name": "w"}\n</tool_call>\n'
        '<tool_call>\n{"name": "get_time"}\n</tool_call> done',
        [
            ("text", "Well.\n"),
            *call("w", '{"a": [1, "]"]}'),
            ("text", "\n"),
            *call("get_time", "{}"),
            ("text", " done"),
        ],
    ),
    (
        '<tool_call>[{"name": "w", "arguments": "{\\"a\\": 1}"}, '
        '{"id": 7, "name": "get_time", "arguments": null, "x": [{}]}]</tool_call>',
        [*call("w", '{"a": 1}'), *call("get_time", "{}")],
    ),
    ("plain <tool_ca", [("text", "plain <tool_ca")]),
    (
        '<tool_call>{"name": "unknown", "arguments": {}}</tool_call>',
        [("text", '<tool_call>{"name": "unknown", "arguments": {}}</tool_call>')],
    ),
    (
        '<tool_call>{"name": "w", "arguments": 3}</tool_call>',
        [("text", '<tool_call>{"name": "w", "arguments": 3}</tool_call>')],
    ),
    ("<tool_call>w()</tool_call>", [("text", "<tool_call>w()</tool_call>")]),
    (
        '<tool_call><tool_call>{"name": "w", "arguments": {}}',
        [("text", "<tool_call>"), *call("w", "{}")],
    ),
    (
        '<tool_call>{"name": "w", "arguments": {"a": "unfini',
        call("w", '{"a": "unfini'),
    ),
    (
        '<tool_call>{"name": "w", "arguments": {"a": 1]} x',
        [*call("w", '{"a": 1'), ("text", "]} x")],
    ),
    (
        '<tool_call>{"name": "w", "arguments": {}} and <tool_call>{"name": "w"}</tool',
        [*call("w", "{}"), ("text", " and "), *call("w", "{}")],
    ),
    (
        '<tool_call>[{"name": "w", "arguments": {}} oops',
        [*call("w", "{}"), ("text", " oops")],
    ),
]
LLAMA = [
    ('{"name": "w", "parameters": {"a": 1}}', call("w", '{"a": 1}')),
    (
        ' {"name": "w", "parameters": {}}; {"name": "get_time", "parameters": {"z": ";"}}',
        [*call("w", "{}"), *call("get_time", '{"z": ";"}')],
    ),
    (
        '<|python_tag|>{"type": "function", "name": "w", "parameters": {"a": "{"}}',
        call("w", '{"a": "{"}'),
    ),
    ('{"answer": 42}', [("text", '{"answer": 42}')]),
    ('So: {"name": "w", "parameters": {}}', [("text", 'So: {"name": "w", "parameters": {}}')]),
    ("[1, 2]", [("text", "[1, 2]")]),
    ("  ", [("text", "  ")]),
]
MISTRAL = [
    (
        'Hm. [TOOL_CALLS] [{"name": "w", "arguments": {"a": 1}}, {"name": "get_time", '
        '"arguments": {}}]',
        [("text", "Hm. "), *call("w", '{"a": 1}'), *call("get_time", "{}")],
    ),
    ('[TOOL_CALLS]w[ARGS]{"a": "}"}', call("w", '{"a": "}"}')),
    (
        '[TOOL_CALLS]w[CALL_ID]abc123DEF[ARGS]{"a": [1]}[TOOL_CALLS]get_time{}',
        [*call("w", '{"a": [1]}'), *call("get_time", "{}")],
    ),
    ("[TOOL_CALLS]unknown[ARGS]{}", [("text", "[TOOL_CALLS]unknown[ARGS]{}")]),
    ("[TOOL_CALLS]w[ARGS]", [("text", "[TOOL_CALLS]w[ARGS]")]),
    ('[TOOL_CALLS]w[ARGS]{"a": ', call("w", '{"a": ')),
    ("a [TOOL_C", [("text", "a [TOOL_C")]),
]
PYTHONIC = [
    (
        "[w(a=1, b='it\\'s (', c=[True, None, {'k': 1.5}]), get_time()]",
        [
            *call("w", '{"a": 1, "b": "it\'s (", "c": [true, null, {"k": 1.5}]}'),
            *call("get_time", "{}"),
        ],
    ),
    (" [w(a=-2)] and more", [*call("w", '{"a": -2}'), ("text", " and more")]),
    ("[w(1)]", [("text", "[w(1)]")]),
    ("[w(a=open('x'))]", [("text", "[w(a=open('x'))]")]),
    ("[w(**{'a': 1})]", [("text", "[w(**{'a': 1})]")]),
    ("[other(a=1)]", [("text", "[other(a=1)]")]),
    ("[w(a=1), other(a=1)]", [*call("w", '{"a": 1}'), ("text", ", other(a=1)]")]),
    ("[1, 2]", [("text", "[1, 2]")]),
    ("[w(a=", [("text", "[w(a=")]),
    ("w(a=1)", [("text", "w(a=1)")]),
]
CASES = [
    (family, text, parts)
    for family, cases in (
        ("hermes", HERMES),
        ("llama3_json", LLAMA),
        ("mistral", MISTRAL),
        ("pythonic", PYTHONIC),
    )
    for text, parts in cases
]


@pytest.mark.parametrize(("family", "text", "parts"), CASES)
def test_the_same_at_every_split(family: str, text: str, parts: list[Part]) -> None:
    """H36, H37: whole, by 1, 2, 3 characters, and in three pieces cut anywhere."""
    make = families.load(family).parser
    assert read(make, [text]) == parts
    for size in (1, 2, 3, 7):
        pieces = [text[at : at + size] for at in range(0, len(text), size)]
        assert read(make, pieces) == parts, size
    for first in range(len(text) + 1):
        for second in {first, min(first + 3, len(text)), len(text)}:
            pieces = [text[:first], text[first:second], text[second:]]
            assert read(make, pieces) == parts, pieces


PIECES = st.sampled_from(
    [
        *("<tool_call>", "</tool_call>", "<tool_", "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>"),
        *('{"name": "w"', '"arguments": {', '"parameters": {"a": "}"}', "w(", "a=1", ")", ", "),
        *("{", "}", "[", "]", '"', "\\", ":", ";", " ", "\n", "text", "w", "\u4e2d", "'"),
        *('{"name": "w", "arguments": {"a": 1}}', "[w(a='x')]", "w[ARGS]{}", "[CALL_ID]x1"),
    ]
)


@pytest.mark.parametrize("family", families.SIGNS)
@given(pieces=st.lists(PIECES, max_size=14), cuts=st.lists(st.integers(0, 80), max_size=6))
def test_any_text_reads_the_same_at_any_split(
    family: str, pieces: list[str], cuts: list[int]
) -> None:
    """Also: no call without a name, no overlap, and text is a subsequence of what came in."""
    text = "".join(pieces)
    make = families.load(family).parser
    whole = read(make, [text])
    marks = sorted({min(cut, len(text)) for cut in cuts})
    ends = [0, *marks, len(text)]
    assert read(make, [text[a:b] for a, b in pairwise(ends)]) == whole
    assert read(make, list(text)) == whole
    kinds = [kind for kind, _ in whole if kind != "text"]
    assert kinds.count("start") == kinds.count("end")
    at = 0
    for kind, part in whole:
        if kind == "text":
            at = text.index(part, at) + len(part)
    if not kinds:
        assert "".join(part for _, part in whole) == text


@given(
    st.dictionaries(
        st.text(max_size=8),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.text(max_size=8),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(st.text(max_size=4), inner, max_size=3)
            ),
            max_leaves=6,
        ),
        max_size=4,
    )
)
def test_any_arguments_come_through(arguments: dict[str, object]) -> None:
    for ascii_only in (True, False):
        written = json.dumps(arguments, ensure_ascii=ascii_only)
        forms = {
            "hermes": f'<tool_call>\n{{"name": "w", "arguments": {written}}}\n</tool_call>',
            "llama3_json": f'{{"name": "w", "parameters": {written}}}',
            "mistral": f"[TOOL_CALLS]w[ARGS]{written}",
        }
        for family, text in forms.items():
            assert read(families.load(family).parser, list(text)) == call("w", written)
    keys = {f"k{index}": value for index, value in enumerate(arguments.values())}
    source = ", ".join(f"{name}={value!r}" for name, value in keys.items())
    found = pythonic.parse_call(f"w({source})")
    assert found is not None and json.loads(found[1]) == keys


def test_lone_surrogates_of_python_strings_become_escapes() -> None:
    source = r'w(a="\ud800 \xe9")'
    assert pythonic.parse_call(source) == ("w", r'{"a": "\ud800 \u00e9"}')


@pytest.mark.parametrize(
    "text",
    ["w(a=" + "(" * 3000 + ")" * 3000 + ")", "w(a=" + "9" * 5000 + ")", "w(a=1e999)", "w(a={1})"],
)
def test_hostile_literals_are_no_calls(text: str) -> None:
    assert pythonic.parse_call(text) is None


@pytest.mark.parametrize(
    ("template", "family"),
    [
        ("{% for m in messages %}{{ m.content }}{% endfor %}", "hermes"),
        ("... within <tool_call></tool_call> XML tags ...", "hermes"),
        ("{{ '[TOOL_CALLS]' }}", "mistral"),
        (
            'Respond in the format {"name": function name, "parameters": dictionary of ...',
            "llama3_json",
        ),
        ("<|python_tag|>", "llama3_json"),
        ("[func_name1(params_name1=params_value1)]", "pythonic"),
    ],
)
def test_the_template_tells_the_family(template: str, family: str) -> None:
    assert families.detect(template) == family
    assert families.load(family).name == family


def test_mistral_ids_are_what_its_templates_take() -> None:
    made = {families.load("mistral").new_id() for _ in range(50)}
    assert len(made) == 50
    assert all(len(text) == 9 and text.isalnum() for text in made)
