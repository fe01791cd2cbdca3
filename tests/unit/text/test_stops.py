"""Stop strings: held back, found across parts, the same for every split."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.text.stops import StopMatcher

SMALL = st.text(alphabet="ab", max_size=24)
STOPS = st.lists(st.text(alphabet="ab", min_size=1, max_size=5), max_size=3)


def run(parts: list[str], stops: list[str], include: bool = False) -> tuple[list[str], bool]:
    """Push parts, flush, and return every non-empty piece of output."""
    matcher = StopMatcher(stops, include)
    pushed = [matcher.push(part) for part in parts]
    sent = [*(text for text, _ in pushed), matcher.flush()]
    return [piece for piece in sent if piece], bool(pushed) and pushed[-1][1]


def naive(text: str, stops: list[str], include: bool = False) -> tuple[str, bool]:
    """Search every prefix of the text for one that ends with a stop string."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            longest = max(map(len, found))
            return (text[:end] if include else text[: end - longest]), True
    return text, False


def split_at(text: str, cuts: list[int]) -> list[str]:
    edges = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    return [text[a:b] for a, b in pairwise(edges)]


def test_a_stop_that_spans_tokens_is_never_sent_in_part() -> None:
    pieces, stopped = run(["ABC", "DEF", "G", "HI", "J", "K"], ["DEFGHIJ"])
    assert pieces == ["ABC"]
    assert stopped


def test_a_stop_that_begins_inside_a_token() -> None:
    assert run(["hel", "lo wor", "ld!"], ["o w"]) == (["hel", "l"], True)


def test_held_text_is_flushed_at_the_end() -> None:
    assert run(["ABC", "DEF", "G"], ["DEFGHIJ"]) == (["ABC", "DEFG"], False)


def test_text_that_cannot_become_a_stop_is_sent_at_once() -> None:
    matcher = StopMatcher(["END"])
    assert matcher.push("some text E") == ("some text ", False)
    assert matcher.push("x") == ("Ex", False)
    assert matcher.push("EN") == ("", False)
    assert matcher.push("EN") == ("EN", False)
    assert matcher.push("D and more") == ("", True)
    assert matcher.push("later") == ("", True)
    assert matcher.flush() == ""


def test_the_stop_string_is_kept_when_asked() -> None:
    assert run(["one E", "ND two"], ["END"], include=True) == (["one E", "ND"], True)


def test_the_first_complete_match_wins_and_then_the_longest() -> None:
    assert run(["abcd"], ["bcd", "c"]) == (["ab"], True)
    assert run(["abcd"], ["c", "bc"]) == (["a"], True)


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        StopMatcher(["x", ""])


def test_no_stops_pass_everything() -> None:
    assert run(["a", "", "b"], []) == (["a", "b"], False)


@pytest.mark.parametrize("include", [False, True])
def test_every_split_of_a_text_gives_the_same_answer(include: bool) -> None:
    text, stops = "xaabaabaaac", ["aabaaa", "aaac", "c"]
    expected = naive(text, stops, include)
    for mask in range(1 << (len(text) - 1)):
        cuts = [i + 1 for i in range(len(text) - 1) if mask >> i & 1]
        pieces, stopped = run(split_at(text, cuts), stops, include)
        assert ("".join(pieces), stopped) == expected


@given(SMALL, STOPS, st.lists(st.integers(0, 100), max_size=8), st.booleans())
def test_equals_a_naive_search(text: str, stops: list[str], cuts: list[int], include: bool) -> None:
    pieces, stopped = run(split_at(text, cuts), stops, include)
    assert ("".join(pieces), stopped) == naive(text, stops, include)


@given(SMALL, STOPS)
def test_what_is_held_back_is_exactly_the_longest_possible_beginning(
    text: str, stops: list[str]
) -> None:
    matcher = StopMatcher(stops)
    sent = ""
    for end, char in enumerate(text, 1):
        piece, stopped = matcher.push(char)
        sent += piece
        if stopped:
            return
        beginnings = [
            n for stop in stops for n in range(len(stop)) if text[:end].endswith(stop[:n])
        ]
        assert text[:end] == sent + text[end - max(beginnings, default=0) : end]
