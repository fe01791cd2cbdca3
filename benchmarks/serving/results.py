"""The record of one run: samples by server, metric and round, and what was said of each server."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass

from app.bench.figures import Metric
from app.bench.stats import advantage, best, median


@dataclass(frozen=True, slots=True)
class Entry:
    """One server of a run. ``installed`` is False when it could not be started at all."""

    name: str
    weights: str
    version: str
    ours: bool
    installed: bool
    command: str


@dataclass(frozen=True, slots=True)
class Sample:
    """One repeat of one scenario (or of the start): its figures by metric, or why it failed."""

    server: str
    round: int
    scenario: str
    figures: Mapping[str, float]
    error: str = ""


@dataclass(frozen=True, slots=True)
class Run:
    """All that a report is made of. ``date``: ISO 8601."""

    date: str
    machine: Mapping[str, str]
    settings: Mapping[str, str]
    entries: tuple[Entry, ...]
    samples: tuple[Sample, ...]

    def values(self, server: str, metric: Metric) -> list[float]:
        """A server's values of one metric, in the order of the rounds."""
        return [
            sample.figures[metric.name]
            for sample in self.samples
            if sample.server == server and metric.name in sample.figures
        ]

    def median(self, server: str, metric: Metric) -> float | None:
        """The median over the rounds; None without values."""
        values = self.values(server, metric)
        return median(values) if values else None

    def best(self, server: str, metric: Metric) -> float | None:
        """The best round; None without values."""
        values = self.values(server, metric)
        return best(values, metric.higher_is_better) if values else None

    def best_peer(self, metric: Metric) -> tuple[str, float] | None:
        """The peer with the best median, and that median."""
        medians = [
            (entry.name, value)
            for entry in self.entries
            if not entry.ours and (value := self.median(entry.name, metric)) is not None
        ]
        if not medians:
            return None
        values: Iterable[float] = [value for _, value in medians]
        top = best(values, metric.higher_is_better)
        return next(pair for pair in medians if pair[1] == top)

    def ratio(self, server: str, metric: Metric) -> float | None:
        """How many times better a server's median is than the best peer's."""
        value, peer = self.median(server, metric), self.best_peer(metric)
        if value is None or peer is None:
            return None
        return advantage(value, peer[1], metric.higher_is_better)

    def failures(self) -> list[Sample]:
        """The samples that hold an error."""
        return [sample for sample in self.samples if sample.error]

    def as_json(self) -> dict[str, object]:
        """Plain data for json.dump."""
        return asdict(self)


def run_of(data: Mapping[str, object]) -> Run:
    """A Run from what ``as_json`` wrote. Raises ValueError for anything else."""
    if missing := {"date", "machine", "settings", "entries", "samples"} - data.keys():
        raise ValueError(f"not a serving run: it has no {', '.join(sorted(missing))}")
    entries, samples = data["entries"], data["samples"]
    machine, settings = data["machine"], data["settings"]
    if not (isinstance(entries, list) and isinstance(samples, list)):
        raise ValueError("entries and samples must be lists")
    if not (isinstance(machine, dict) and isinstance(settings, dict)):
        raise ValueError("machine and settings must be objects")
    return Run(
        str(data["date"]),
        machine,
        settings,
        tuple(Entry(**entry) for entry in entries),
        tuple(Sample(**sample) for sample in samples),
    )


def merged(runs: list[Run]) -> Run:
    """One run of several on the same machine: the entries and samples of all, the first's facts.

    Raises ValueError when they come from different machines.
    """
    first = runs[0]
    same = ("processor", "instruction sets", "cores")
    if any(run.machine.get(key) != first.machine.get(key) for run in runs for key in same):
        raise ValueError("the runs come from different machines")
    entries = {entry.name: entry for run in runs for entry in run.entries}
    samples = tuple(sample for run in runs for sample in run.samples)
    rounds = Counter(
        server for run in runs for server, _ in {(s.server, s.round) for s in run.samples}
    )
    settings = {**first.settings, "rounds": str(max(rounds.values(), default=0))}
    return Run(first.date, first.machine, settings, tuple(entries.values()), samples)
