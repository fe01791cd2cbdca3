"""A choice's text and entries do not depend on how its tokens arrive."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from app.serving.assemble import Assembler, Piece
from app.serving.events import TokenEntry
from engine.text.stops import StopMatcher
from engine.types import FinishReason, TokenDelta, TokenLogprobs
from tests.support.words import FIRST_BYTE, VOCAB_SIZE, piece_ids, text_assets

TOKENIZER = text_assets().tokenizer

ids = st.lists(
    st.one_of(
        st.sampled_from([FIRST_BYTE + byte for byte in b"abAB \xe4\xb8\xad\xf0\x9f"]),
        st.integers(FIRST_BYTE, VOCAB_SIZE - 1),
    ),
    max_size=24,
)
stops = st.lists(st.text("abABCDEFHI", min_size=1, max_size=4), max_size=3)


def deltas(tokens: Sequence[int], cuts: Sequence[int], reason: FinishReason) -> list[TokenDelta]:
    """The tokens in parts, with log probabilities; the last part ends the sequence."""
    parts, rest = [], list(tokens)
    for cut in cuts:
        parts.append(rest[:cut])
        rest = rest[cut:]
    parts.append(rest)
    return [
        TokenDelta(
            tuple(part),
            tuple(TokenLogprobs(token, -float(token)) for token in part),
            reason if index == len(parts) - 1 else None,
        )
        for index, part in enumerate(parts)
    ]


def assemble(
    parts: Sequence[TokenDelta], stop: Sequence[str] = (), min_tokens: int = 0
) -> tuple[Assembler, list[Piece]]:
    assembler = Assembler(0, TOKENIZER.detokenizer(), StopMatcher(stop), min_tokens=min_tokens)
    pieces = []
    for part in parts:
        pieces.append(assembler.push(part))
        if assembler.finish is not None:
            break
    return assembler, pieces


def joined(pieces: Sequence[Piece]) -> tuple[str, list[TokenEntry], list[int], str | None]:
    return (
        "".join(p.text for p in pieces),
        [e for p in pieces for e in p.entries],
        [t for p in pieces for t in p.token_ids],
        pieces[-1].finish,
    )


@given(ids, stops, st.lists(st.integers(0, 4), max_size=8), st.integers(0, 3), st.booleans())
def test_parts_do_not_matter(
    tokens: list[int], stop: list[str], cuts: list[int], min_tokens: int, ended: bool
) -> None:
    reason = FinishReason.STOP if ended else FinishReason.LENGTH
    tokens = [*tokens, 0] if ended else tokens
    cuts = [cut for i, cut in enumerate(cuts) if sum(cuts[: i + 1]) < len(tokens)]
    whole = assemble(deltas(tokens, [], reason), stop, min_tokens)
    single = assemble(deltas(tokens, [1] * (len(tokens) - 1), reason), stop, min_tokens)
    mixed = assemble(deltas(tokens, cuts, reason), stop, min_tokens)
    assert joined(whole[1]) == joined(single[1]) == joined(mixed[1])
    assert whole[0].tokens == single[0].tokens == mixed[0].tokens == len(joined(whole[1])[2])


@given(ids, stops)
def test_text_is_cut_at_the_stop_that_is_complete_first(tokens: list[int], stop: list[str]) -> None:
    text = TOKENIZER.decode(tokens)
    ends = [
        (end, -len(s))
        for s in stop
        for end in range(len(s), len(text) + 1)
        if text[:end].endswith(s)
    ]
    _, pieces = assemble(deltas(tokens, [1] * len(tokens), FinishReason.LENGTH), stop)
    shown, entries, _, finish = joined(pieces)
    if not ends:
        assert (shown, finish) == (text, "length")
        assert [e.logprobs.token_id for e in entries] == tokens
        return
    end, minus = min(ends)
    assert (shown, finish) == (text[: end + minus], "stop")
    assert all(e.start < len(shown) for e in entries)
    assert [e.logprobs.token_id for e in entries] == tokens[: len(entries)]


@given(ids)
def test_entries_start_where_their_text_does(tokens: list[int]) -> None:
    _, pieces = assemble(deltas(tokens, [], FinishReason.LENGTH))
    shown, entries, _, _ = joined(pieces)
    starts = [e.start for e in entries]
    assert starts == sorted(starts)
    for entry, end in zip(entries, [*starts, len(shown)][1:], strict=True):
        text = TOKENIZER.token_bytes(entry.logprobs.token_id).decode(errors="replace")
        if "\ufffd" not in text and "\ufffd" not in shown:
            assert shown[entry.start : end] == text


def test_nothing_of_a_stop_string_is_sent_early() -> None:
    parts = deltas(piece_ids("ABC", "DEF", "HI", "JK"), [1, 1, 1], FinishReason.LENGTH)
    _, pieces = assemble(parts, ["DEFHIJ"])
    assert [p.text for p in pieces] == ["ABC", "", "", ""]
    assert [len(p.entries) for p in pieces] == [1, 0, 0, 0]


def test_the_end_token_has_no_text_and_no_entry() -> None:
    _, pieces = assemble(deltas([*piece_ids("one"), 0], [1], FinishReason.STOP))
    text, entries, tokens, finish = joined(pieces)
    assert (text, len(entries), tokens, finish) == ("one", 1, [*piece_ids("one"), 0], "stop")
