"""Compiled grammars: what they allow, what is refused, the limits, and the event loop."""

import asyncio
import gc
import json
import subprocess
import sys
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers.models import WordLevel

from engine.errors import GrammarError
from engine.grammar.compiler import GrammarCompiler
from engine.grammar.limits import MAX_CHOICES, MAX_PROPERTIES, MAX_RULES, MAX_SUBSCHEMAS, MAX_TEXT
from engine.text.info import PieceRules, TextInfo
from engine.text.tokenizer import Tokenizer
from engine.types import GrammarSpec
from tests.support.grammars import allowed, compiler, schema, verdict
from tests.support.words import EOS, FIRST_BYTE, SPECIALS, VOCAB_SIZE, text_assets

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name"],
    "additionalProperties": False,
}
CALL = 'start: "<call>" body "</call>"\nbody: %json {"type": "object"}'
SLOW = {"type": "integer", "multipleOf": 99991}

TEXTS: list[tuple[GrammarSpec, dict[str, str]]] = [
    (
        GrammarSpec("json_object"),
        {
            "{}": "ended",
            '{"a": [1, null]}': "ended",
            "[]": "refused",
            '{"a"': "open",
            " {": "refused",
        },
    ),
    (
        schema(PERSON),
        {
            '{"name":"x"}': "ended",
            '{"name": "\u4e2d", "age": 3}': "ended",
            '{"age"': "refused",
            '{"name":"x","b"': "refused",
            '{"name":1': "refused",
        },
    ),
    (schema(True), {"[1]": "ended", "12": "may end", "nul": "open"}),
    (schema({"type": "string", "pattern": "^a/b$"}), {'"a/b"': "ended", '"ab"': "refused"}),
    (
        GrammarSpec("regex", "a/b\\/[/]\n?"),
        {"a/b//": "may end", "a/b//\n": "ended", "b": "refused"},
    ),
    (GrammarSpec("regex", "^[0-9]{2}$"), {"12": "ended", "1": "open", "123": "refused"}),
    (
        GrammarSpec("choice", json.dumps(["on", "one", 'x"\n\\'])),
        {"on": "may end", "one": "ended", 'x"\n\\': "ended", "two": "refused"},
    ),
    (GrammarSpec("lark", 'start: "a" | "b" start'), {"bba": "ended", "c": "refused"}),
    (GrammarSpec("lark", 'root ::= "a" | "b"'), {"a": "ended", "c": "refused"}),
    (GrammarSpec("lark", CALL), {'<call>{"a": 1}</call>': "ended", "<call>[": "refused"}),
    (
        GrammarSpec("json_object", after="</think>"),
        {
            "{}": "open",
            "hm {}</think>{}": "ended",
            "hm</think>\n\n{}": "ended",
            "</think>[": "refused",
        },
    ),
    (
        GrammarSpec("regex", "[0-9]", after="<|im_start|>"),
        {"1": "open", "a<|im_start|>1": "ended", "<|im_start|>a": "refused"},
    ),
]


@pytest.mark.parametrize(("spec", "texts"), TEXTS, ids=str)
async def test_allows_what_the_grammar_says(spec: GrammarSpec, texts: dict[str, str]) -> None:
    grammar = await compiler().compile(spec)
    assert {text: verdict(grammar, text) for text in texts} == texts


def nested(depth: int) -> str:
    return '{"type":"object","properties":{"a":' * depth + "{}" + "}}" * depth


def many(count: int, make: Any) -> list[Any]:
    return [make(index) for index in range(count)]


REFUSED: list[tuple[GrammarSpec, str]] = [
    (schema({"not": {}}), "uses schema keywords that are not supported: 'not'"),
    (schema({"uniqueItems": True, "if": {}}), "'uniqueItems'"),
    (schema({"items": {"then": {}}}), "uses the keyword 'then', which is not supported"),
    (schema({"properties": {"a": {"contentEncoding": "base64"}}}), "'contentEncoding'"),
    (schema({"type": "string", "pattern": "^hi\\!$["}), r"^hi\!$["),
    (schema({"type": "string", "pattern": "(?=a)"}), "look-ahead"),
    (schema({"type": "string", "format": "nonsense"}), "Unknown format: nonsense"),
    (schema({"type": "nonsense"}), "Invalid type: nonsense"),
    (schema({"$ref": "#/$defs/a"}), "'/$defs/a' does not exist"),
    (schema({"$ref": "https://example.org/schema.json"}), "https://example.org/schema.json"),
    (schema({"$ref": "#"}), "allows no text at all"),
    (schema({"enum": []}), "Unsatisfiable"),
    (schema(False), "allows no value"),
    (GrammarSpec("json_schema", nested(5000)), "nested more than 64 deep"),
    (GrammarSpec("json_schema", nested(40)), "nested more than 64 deep"),
    (GrammarSpec("json_schema", "{"), "is not valid JSON"),
    (GrammarSpec("json_schema", '{"minimum": NaN}'), "holds NaN"),
    (GrammarSpec("json_schema", "[]"), "must be a JSON object"),
    (GrammarSpec("json_schema", '"' + "x" * MAX_TEXT + '"'), f"more than {MAX_TEXT}"),
    (schema({"anyOf": many(MAX_SUBSCHEMAS, lambda i: {"const": i})}), f"{MAX_SUBSCHEMAS} schemas"),
    (
        schema({"properties": dict(many(MAX_PROPERTIES + 1, lambda i: (f"k{i}", {})))}),
        f"{MAX_PROPERTIES + 1} properties",
    ),
    (
        schema(
            {"allOf": many(6, lambda i: {"anyOf": many(16, lambda j: {"required": [f"{i}{j}"]})})}
        ),
        "",
    ),
    (GrammarSpec("regex", "("), "unclosed group"),
    (GrammarSpec("regex", "(" * 5000 + ")" * 5000), "is not supported"),
    (GrammarSpec("regex", "a\\1"), "backreferences"),
    (GrammarSpec("choice", json.dumps(many(MAX_CHOICES + 1, str))), f"1 to {MAX_CHOICES}"),
    (GrammarSpec("lark", "start: nothing"), 'unknown name: "nothing"'),
    (GrammarSpec("lark", 'begin: "a"'), "no start rule"),
    (GrammarSpec("lark", "start: start"), "allows no text at all"),
    (GrammarSpec("lark", "start: " + "(" * 5000 + '"a"' + ")" * 5000), "deeply nested"),
    (GrammarSpec("lark", 'start: a\na: %json {"not": {}}'), "'not'"),
    (GrammarSpec("lark", 'start: a\na: %json {"then": {}}'), "'then'"),
    (GrammarSpec("lark", "start: a\na: %json {,}"), "not valid JSON"),
    (GrammarSpec("lark", "root ::= ("), "Expected ')'"),
    (GrammarSpec("lark", "root ::= " + "(" * 5000), "recursion"),
    (
        GrammarSpec(
            "lark", "\n".join(["start: a0", *many(MAX_RULES, lambda i: f"a{i}: a{i + 1}")])
        ),
        f"more than {MAX_RULES} rules",
    ),
]


@pytest.mark.parametrize(("spec", "message"), REFUSED, ids=lambda value: str(value)[:60])
async def test_refuses_by_name(spec: GrammarSpec, message: str) -> None:
    """H39, H40: nothing is served without its grammar, and no bad one runs into the time limit."""
    owner = compiler()
    await owner.compile(GrammarSpec("json_object"))
    with pytest.raises(GrammarError) as refusal:
        await owner.compile(spec)
    assert message in str(refusal.value)
    assert len(str(refusal.value)) < 400


async def test_a_wide_or_recursive_schema_is_served() -> None:
    owner = compiler()
    wide = {"anyOf": many(2000, lambda i: {"type": "object", "required": [f"k{i}"]})}
    chain = {f"d{i}": {"items": {"$ref": f"#/$defs/d{i + 1}"}} for i in range(1500)}
    deep = {"$defs": {**chain, "d1500": {}}, "$ref": "#/$defs/d0"}
    tree = {"type": "object", "properties": {"next": {"$ref": "#"}}, "additionalProperties": False}
    assert verdict(await owner.compile(schema(wide)), '{"k7": 1}') == "ended"
    assert verdict(await owner.compile(schema(deep)), "[[[]]]") == "ended"
    assert verdict(await owner.compile(schema(tree)), '{"next":{"next":{}}}') == "ended"


@pytest.mark.parametrize("spec", [GrammarSpec("json_object"), GrammarSpec("lark", CALL)], ids=str)
async def test_white_space_is_bounded(spec: GrammarSpec) -> None:
    grammar = await compiler().compile(spec)
    begin = "<call>" if spec.kind == "lark" else ""
    assert verdict(grammar, begin + '{\n  "a" : 1}') != "refused"
    assert verdict(grammar, begin + "{\n" + " " * 33) == "refused"
    assert verdict(grammar, begin + "{\n\n") == "refused"
    assert verdict(grammar, begin + "{  ") == "refused"


async def test_control_tokens_are_no_text_and_end_tokens_only_end() -> None:
    grammar = await compiler().compile(GrammarSpec("regex", "(?s:.*)x"))
    matcher = grammar.matcher(())
    free = allowed(matcher, grammar.mask_words)
    assert not free & set(range(len(SPECIALS)))
    assert max(free) == VOCAB_SIZE - 1
    matcher.accept(FIRST_BYTE + ord("x"))
    assert allowed(matcher, grammar.mask_words) & set(range(len(SPECIALS))) == set(EOS)


async def test_ids_without_text_are_never_allowed() -> None:
    wide = GrammarCompiler(text_assets().tokenizer, VOCAB_SIZE + 40, EOS)
    grammar = await wide.compile(GrammarSpec("regex", "(?s:.*)"))
    ids = allowed(grammar.matcher(()), grammar.mask_words)
    assert max(ids) == VOCAB_SIZE - 1


async def test_spaces_of_sentencepiece_are_spaces() -> None:
    words = ("<unk>", "</s>", "x", "\u2581x", "<0x0A>")
    backend = Backend(WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    rules = PieceRules("sentencepiece", byte_fallback=True, strip_space=True)
    tokenizer = Tokenizer(backend, TextInfo(len(words), False, None, (1,), rules))
    grammar = await GrammarCompiler(tokenizer, len(words), (1,)).compile(
        GrammarSpec("regex", "x x\n")
    )
    matcher = grammar.matcher(())
    for token_id in (2, 3, 4):
        assert allowed(matcher, grammar.mask_words) == {token_id}
        matcher.accept(token_id)
    assert matcher.ended


async def test_a_matcher_follows_what_was_generated() -> None:
    grammar = await compiler().compile(GrammarSpec("regex", "abcd"))
    ids = [FIRST_BYTE + ord(char) for char in "abcd"]
    for done in range(4):
        assert allowed(grammar.matcher(ids[:done]), grammar.mask_words) == {ids[done]}
    assert grammar.matcher(ids).ended


async def test_equal_grammars_are_compiled_once() -> None:
    owner = compiler()
    specs = [GrammarSpec("regex", "a+", param=f"p{i}") for i in range(30)]
    first, *others = await asyncio.gather(*map(owner.compile, specs))
    assert all(other is first for other in others)
    assert await owner.compile(specs[0]) is first


async def test_every_asker_learns_of_its_own_field() -> None:
    owner = compiler()
    asked = [owner.compile(GrammarSpec("regex", "(", param=name)) for name in ("a", "b")]
    errors = await asyncio.gather(*asked, return_exceptions=True)
    assert [error.param for error in errors if isinstance(error, GrammarError)] == ["a", "b"]


async def test_a_slow_grammar_is_given_up_and_holds_nothing_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    owner = compiler()
    await owner.compile(GrammarSpec("json_object"))
    monkeypatch.setattr("engine.grammar.compiler.COMPILE_SECONDS", 0.05)
    with pytest.raises(GrammarError, match=r"takes longer than 0\.05 s"):
        await owner.compile(schema(SLOW))
    assert verdict(await owner.compile(GrammarSpec("regex", "a")), "a") == "ended"


async def test_an_asker_that_leaves_does_not_end_the_others() -> None:
    owner = compiler()
    spec = schema({"type": "integer", "multipleOf": 9973})
    leaving, staying = (asyncio.create_task(owner.compile(spec)) for _ in range(2))
    await asyncio.sleep(0.01)
    leaving.cancel()
    assert verdict(await staying, "9973") != "refused"


async def test_a_failure_that_nobody_waits_for_is_no_news(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The client left while its grammar was compiled, which then fails."""
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    owner = compiler()
    await owner.compile(GrammarSpec("json_object"))
    monkeypatch.setattr("engine.grammar.compiler.COMPILE_SECONDS", 0.05)
    leaving = asyncio.create_task(owner.compile(schema(SLOW)))
    await asyncio.sleep(0.01)
    leaving.cancel()
    await asyncio.sleep(0.1)
    assert leaving.cancelled()
    del leaving  # its traceback holds the compilation, which tells when it is let go
    gc.collect()
    assert told == []


def test_nothing_is_loaded_before_the_first_grammar() -> None:
    code = (
        "import sys; from tests.support.grammars import compiler; compiler();"
        "sys.exit('llguidance' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


async def test_what_is_remembered_is_bounded() -> None:
    owner = compiler()
    specs = [schema({"description": f"{i}" + "x" * 200_000}) for i in range(15)]
    grammars = [await owner.compile(spec) for spec in specs]
    assert await owner.compile(specs[-1]) is grammars[-1]
    assert await owner.compile(specs[0]) is not grammars[0]
    small = [GrammarSpec("regex", f"a{i}") for i in range(140)]
    first = await owner.compile(small[0])
    for spec in small[1:]:
        await owner.compile(spec)
    assert await owner.compile(small[0]) is not first
