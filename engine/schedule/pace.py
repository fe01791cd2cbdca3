"""How many prompt rows a step takes while other sequences wait for their next token."""

from collections.abc import Iterable
from math import inf, sqrt

from msgspec import Struct

from engine.core.schema import ModelSpec
from engine.schedule.output import SchedulerOutput, Segment

GRAIN = 16
"""Chunks are cut to multiples of this many rows: the height of a kernel's tile."""
DECAY = 0.9
"""Weight of what was measured before, per step: about ten steps count."""
PULL = 0.05
"""How strongly the two rates are pulled together where the steps say little about one of them."""
SLACK_DECAY = 0.8
"""What is left of the slack after a step that took no longer than expected."""
MOST_SLACK = 1.5
"""Chunks are never cut by more than this factor for steps that took longer than expected."""
DECODE_SHARE = 2.0
"""Prompts get at least this many times the time of the decode rows, however long those take."""


def attention_depth(model: ModelSpec) -> float:
    """Position at which a row's attention does as much arithmetic as its linears.

    Multiply-adds per layer: of the linears, their weights; of attention, 2 * heads * head_dim per
    key (scores and values).
    """
    queries, keys = model.heads * model.head_dim, model.kv_heads * model.head_dim
    weights = model.hidden * (2 * queries + 2 * keys + 3 * model.intermediate)
    return weights / (2 * queries)


class _Sums(Struct):
    """Decayed sums of a least-squares fit of seconds over rows (r) and keys (k)."""

    rr: float = 0.0
    rk: float = 0.0
    kk: float = 0.0
    rt: float = 0.0
    kt: float = 0.0

    def add(self, rows: float, keys: float, seconds: float) -> None:
        self.rr = self.rr * DECAY + rows * rows
        self.rk = self.rk * DECAY + rows * keys
        self.kk = self.kk * DECAY + keys * keys
        self.rt = self.rt * DECAY + rows * seconds
        self.kt = self.kt * DECAY + keys * seconds

    def solve(self) -> tuple[float, float]:
        """Seconds per row and per key: ridge regression on their difference, both positive."""
        pull = PULL * self.rr
        a, b, c = self.rr + pull, self.rk - pull, self.kk + pull
        det = a * c - b * b
        if det <= 0.0:
            return inf, inf
        row, key = (c * self.rt - b * self.kt) / det, (a * self.kt - b * self.rt) / det
        mean = self.rt / self.rr
        return max(row, 0.1 * mean), max(key, 0.1 * mean)


class Pace:
    """Cuts the chunks of a step with decode rows, so that it lasts about ``target`` seconds.

    A row costs the time of the linears, the same everywhere, and that of attention, which grows
    with its position: seconds = row * rows + key * keys / depth, keys being the sum of the rows'
    positions. Both rates are fitted to the steps measured. Nothing is cut before one was. Where
    steps take longer than the fit expects (the machine does other work, too), rows are counted as
    that much slower for the next few.

    depth: position at which a row's attention does as much arithmetic as its linears.
    """

    def __init__(self, target: float, depth: float) -> None:
        self._target = target
        self._depth = depth
        self._sums = _Sums()
        self._decode = 0.0
        self._slack = 1.0

    def observe(self, output: SchedulerOutput, seconds: float) -> None:
        """Learn from a step that took ``seconds``."""
        prompts = output.prompts
        if not prompts:
            if output.decodes and not output.recomputes:
                self._decode += 0.2 * (seconds - self._decode)
            return
        rows = sum(segment.count for segment in prompts)
        spent = seconds - (self._decode if output.decodes else 0.0)
        if rows >= GRAIN and spent > 0.0:
            keys = self._keys(prompts)
            self._loosen(rows, keys, spent)
            self._sums.add(rows, keys, spent)

    def _loosen(self, rows: float, keys: float, spent: float) -> None:
        """Let the slack shrink, or grow at once to what the step took of what was expected."""
        if self._sums.rr:
            row, key = self._sums.solve()
            late = spent / (row * rows + key * keys)
            fading = 1.0 + SLACK_DECAY * (self._slack - 1.0)
            self._slack = min(MOST_SLACK, max(late, fading))

    def _rates(self) -> tuple[float, float]:
        """Seconds per row and per key, with the slack."""
        row, key = self._sums.solve()
        return row * self._slack, key * self._slack

    def _keys(self, prompts: Iterable[Segment]) -> float:
        return sum(s.count * (s.start + s.end) for s in prompts) / (2.0 * self._depth)

    def seconds(self) -> float:
        """What prompt rows may take in a step that has decode rows."""
        if not self._sums.rr:
            return inf
        return max(self._target - self._decode, DECODE_SHARE * self._decode)

    def rows(self, start: int, seconds: float) -> int:
        """Rows from position ``start`` on that ``seconds`` are enough for; at least a tile's.

        The positive root of row * n + key * (start * n + n^2 / 2) / depth = seconds.
        """
        if seconds == inf:
            return 2**31
        row, key = self._rates()
        slope, bend = row + key * start / self._depth, key / self._depth
        count = (sqrt(slope * slope + 2.0 * bend * max(seconds, 0.0)) - slope) / bend
        return max(GRAIN, int(count) // GRAIN * GRAIN)

    def cost(self, start: int, count: int) -> float:
        """Seconds that ``count`` rows from ``start`` on are expected to take."""
        if not self._sums.rr:
            return 0.0
        row, key = self._rates()
        return row * count + key * count * (start + count / 2.0) / self._depth
