"""The drafter: what it finds, and how it adapts to what the model says."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from engine.schedule.drafts import LONGEST, SHORTEST, NgramDrafter, draft_limits

TOKENS = st.lists(st.integers(0, 3), max_size=40)


def naive(text: list[int], count: int) -> list[int]:
    """Search the whole text for what followed its last tokens, the latest place first."""
    for size in range(LONGEST, SHORTEST - 1, -1):
        for start in range(len(text) - 1, size - 1, -1):
            if len(text) > size and text[start - size : start] == text[-size:]:
                longer = list(text)
                for _ in range(count):
                    longer.append(longer[start + len(longer) - len(text)])
                return longer[len(text) :]
    return []


@given(prompt=TOKENS, output=TOKENS, count=st.integers(1, 6))
def test_it_finds_what_a_search_finds(prompt: list[int], output: list[int], count: int) -> None:
    drafter = NgramDrafter(prompt, count)
    assert drafter.propose(output, count) == naive(prompt + output, count)


@given(prompt=TOKENS, output=TOKENS, cut=st.integers(0, 40))
def test_a_text_that_grows_is_as_one_given_at_once(
    prompt: list[int], output: list[int], cut: int
) -> None:
    drafter = NgramDrafter(prompt, 3)
    drafter.propose(output[:cut], 0)  # takes the text in, and proposes nothing
    assert drafter.propose(output, 3) == naive(prompt + output, 3)


def test_right_drafts_go_on_and_never_exceed_what_is_wanted() -> None:
    drafter = NgramDrafter([1, 2, 3] * 3, 4)
    output: list[int] = []
    for _ in range(5):
        drafts = drafter.propose(output, 4)
        assert len(drafts) == 4
        output += drafts
        output.append((output[-1]) % 3 + 1)
    assert drafter.propose(output, 2) == [output[-1] % 3 + 1, (output[-1] + 1) % 3 + 1]
    assert drafter.propose(output, 0) == []


def test_wrong_drafts_are_paused_for_longer_and_longer() -> None:
    drafter = NgramDrafter([5, 6, 7], 4)
    output: list[int] = []
    proposed = []
    for i in range(400):
        output += [5, 6, 100 + i]  # after 5 6, never what came before
        for known in (len(output) - 1, len(output)):
            if drafter.propose(output[:known], 4):
                proposed.append(known)
    assert 5 <= len(proposed) < 30
    gaps = [after - before for before, after in pairwise(proposed)]
    assert gaps[-1] > gaps[0]


def test_partly_right_drafts_become_shorter() -> None:
    drafter = NgramDrafter([1, 2, 3, 4, 5, 6, 1, 2], 4)
    assert drafter.propose([], 4) == [3, 4, 5, 6]
    assert len(drafter.propose([3, 9, 1, 2], 4)) == 1


def test_limits_fit_the_decode_graphs() -> None:
    assert draft_limits(0, 32) is None
    limits = draft_limits(4, 8)
    assert limits is not None and limits.rows == 8
    limits = draft_limits(31, 256)
    assert limits is not None and limits.rows == 32
