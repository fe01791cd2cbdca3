"""The verdict: one sentence, from the differences that decide."""

from collections.abc import Sequence

from msgspec import Struct

from app.bench.compare.analysis import Difference
from app.bench.compare.texts import Texts
from app.bench.figures import GOODPUT

SHOWN = 3  # differences that a sentence names
CLOSE = 0.05  # intervals within this share of zero: no difference that matters


class Seen(Struct, frozen=True):
    """A difference that decides, and the cell that it is of."""

    cell: str
    difference: Difference


class Legs(Struct, frozen=True):
    """The legs' names, base first, and the flags that choose them."""

    names: tuple[str, str]
    flags: tuple[str, str]

    def flag(self, name: str) -> str:
        """How to serve with that leg."""
        return self.flags[self.names.index(name)]


class Verdict(Struct, frozen=True):
    """kind: better, trade-off, none, invalid or incomplete. choice: the leg to serve with."""

    kind: str
    choice: str | None
    sentence: str


def incomplete(why: str) -> Verdict:
    """Of a comparison that was not finished."""
    return Verdict("incomplete", None, f"No verdict: the comparison was not finished ({why}).")


def judge(seen: Sequence[Seen], legs: Legs, texts: Texts, failed: int) -> Verdict:
    """The verdict over all cells. ``failed``: requests without an answer."""
    if texts.different:
        return Verdict(
            "invalid",
            None,
            f"No verdict: {texts.different} of {texts.compared} answers differ between the legs, "
            "which no setting may cause; check the core with flare verify.",
        )
    if failed:
        return Verdict("invalid", None, f"No verdict: {failed} requests failed.")
    for_leg = {leg: [s for s in seen if s.difference.better == leg] for leg in legs.names}
    winners = [leg for leg in legs.names if for_leg[leg]]
    if not winners:
        return _none(seen, legs)
    if len(winners) == 1:
        return _better(winners[0], for_leg[winners[0]], seen, legs)
    return _trade_off(for_leg, seen, legs)


def judge_grid(seen: Sequence[Seen], legs: Legs, texts: Texts, failed: int) -> Verdict:
    """The verdict over a heat map: in how many cells each leg is better."""
    plain = judge(seen, legs, texts, failed)
    if plain.kind in ("invalid", "none"):
        return plain
    counts = [sum(s.difference.better == leg for s in seen) for leg in legs.names]
    title = seen[0].difference.title
    parts = [f"{leg} in {count}" for leg, count in zip(legs.names, counts, strict=True) if count]
    rest = len(seen) - sum(counts)
    won = f"{title} is better with {' and with '.join(parts)} of {len(seen)} cells"
    won += f", {rest} show no difference" if rest else ""
    if plain.choice is None:
        return Verdict("trade-off", None, f"It depends on the cell: {won}.")
    flag = legs.flag(plain.choice)
    return Verdict("better", plain.choice, f"Serve with {flag}: {won}.")


def change(difference: Difference) -> str:
    """In words, of the other leg against the base: "12.3 % shorter (9.1 to 15.0)"."""
    estimate = _number(difference.estimate)
    ends = sorted((abs(_number(difference.low)), abs(_number(difference.high))))
    words = ("higher", "lower") if difference.higher_is_better else ("longer", "shorter")
    word = words[estimate < 0]
    return f"{100 * abs(estimate):.1f} % {word} ({100 * ends[0]:.1f} to {100 * ends[1]:.1f})"


def _number(value: float | None) -> float:
    assert value is not None  # what is better has an interval
    return value


def _named(found: Sequence[Seen], seen: Sequence[Seen]) -> str:
    """The largest differences, with their cells where there are several."""
    several = len({s.cell for s in seen}) > 1
    ordered = sorted(found, key=lambda s: -abs(_number(s.difference.estimate)))
    parts = [
        f"{s.difference.title} is {change(s.difference)}{f' for {s.cell}' if several else ''}"
        for s in ordered[:SHOWN]
    ]
    more = f" and {len(ordered) - SHOWN} more" if len(ordered) > SHOWN else ""
    return ", ".join(parts) + more


def _better(leg: str, found: Sequence[Seen], seen: Sequence[Seen], legs: Legs) -> Verdict:
    other = legs.names[1]
    loses = "worse" if leg == other else "better"
    return Verdict(
        "better",
        leg,
        f"Serve this traffic with {legs.flag(leg)}: with {other}, {_named(found, seen)}, "
        f"and nothing that decides is measurably {loses}.",
    )


def _trade_off(for_leg: dict[str, list[Seen]], seen: Sequence[Seen], legs: Legs) -> Verdict:
    base, other = legs.names
    gains, losses = _named(for_leg[other], seen), _named(for_leg[base], seen)
    goodput = {s.difference.better for s in seen if s.difference.metric == GOODPUT.name}
    chosen = goodput - {None}
    if len(chosen) == 1:
        (choice,) = chosen
        assert choice is not None
        return Verdict(
            "trade-off",
            choice,
            f"By your objective, serve this traffic with {legs.flag(choice)}; in favour of "
            f"{other}: {gains}; in favour of {base}: with {other}, {losses}.",
        )
    return Verdict(
        "trade-off",
        None,
        f"It depends on what you value: with {other}, {gains}, but {losses}.",
    )


def _none(seen: Sequence[Seen], legs: Legs) -> Verdict:
    known = [s.difference for s in seen if s.difference.estimate is not None]
    if not known:
        return Verdict("none", None, "No difference can be shown: too little was measured.")
    widest = max(max(abs(_number(d.low)), abs(_number(d.high))) for d in known)
    rest = "the core's default is as good" if widest < CLOSE else "more --repeats would narrow them"
    return Verdict(
        "none",
        None,
        f"No difference is shown between {legs.names[0]} and {legs.names[1]} on this traffic: "
        f"every interval holds zero, the widest reaches to {100 * widest:.1f} %; {rest}.",
    )
