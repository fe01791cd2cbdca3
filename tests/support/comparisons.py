"""Comparisons whose measurements are made up: known figures go in, a report comes out."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from app.bench.compare.analysis import corrected, decisive
from app.bench.compare.cells import Cell, grid_cells, load_cells
from app.bench.compare.power import Meter
from app.bench.compare.report import Ask, Report, build
from app.bench.compare.run import Comparison, Results
from app.bench.compare.samples import BY_NAME, Sample, Taken
from app.bench.compare.server import Start
from app.bench.compare.stalls import Gaps
from app.bench.plan import Plan
from app.bench.workloads import WORKLOADS

BASE = {"tok_s": 100.0, "req_s": 2.0, "ttft_mean": 200.0, "ttft_p50": 190.0}
BASE |= {"gap_mean": 20.0, "gap_p50": 18.0, "gap_p90": 30.0, "gap_p99": 80.0, "gap_max": 90.0}
NOISE = (0.99, 1.01, 1.0, 0.985, 1.015, 1.005, 0.995, 1.0)  # a factor that both of a pair share
OWN = (0.999, 1.001, 1.002, 0.998, 1.0, 1.001, 0.999, 1.0)  # and one that they do not
CONFIG: dict[str, Any] = {
    "core": {"path": "a.core", "digest": "d" * 64},
    "model": {"id": "tiny"},
    "scheduler": {"max_num_seqs": 64, "max_model_len": 8192, "kv_blocks": 100},
}
GRAPHS: dict[str, Any] = {
    "retained": {"decode": 2, "mixed": 1},
    "pruned": {"decode": 0, "mixed": 0},
    "storage_bytes": {"captured": 100, "loaded": 100},
    "workspace_bytes": {"captured": 10, "retained": 10, "reserved": 10},
}


def plan(*concurrency: int, **changes: Any) -> Plan:
    return Plan(
        **({"source": WORKLOADS["chat"], "concurrency": concurrency, "repeats": 4} | changes)
    )


def ask(cells: Sequence[Cell], metric: str | None = None, *, asked: bool = False) -> Ask:
    """A question over ten repeats; ``metric``: of a heat map."""
    decide = (BY_NAME[metric],) if metric else decisive(asked)
    absent = Meter((), "this machine has no meter")
    return Ask(
        comparison=Comparison(Path("a.core"), (tuple(cells),), 10, absent),
        decide=decide,
        confidence=0.95,
        level=corrected(0.95, len(decide) * len(cells)),
        asked=asked,
        map_metric=metric,
        forecasts={},
        variables={"FLARE_THREADS": "2"},
    )


def taken(cell: str, leg: str, pair: int, factors: Mapping[str, float], **changes: Any) -> Taken:
    """One run: the base figures, times the factors of its leg, times noise."""
    shared, own = NOISE[pair % len(NOISE)], OWN[pair % len(OWN)]
    figures = {name: value * shared for name, value in BASE.items()}
    if leg == "mixed":
        figures = {name: v * own * factors.get(name, 1.0) for name, v in figures.items()}
    values: dict[str, Any] = {
        "cell": cell,
        "leg": leg,
        "pair": pair,
        "order": 0,
        "seconds": 1.0,
        "blocks": (1.0,),
        "requests": 2,
        "figures": figures,
        "launches": {"decode": 3.0},
        "padded": {"decode": 1.0},
        "preemptions": 0.0,
        "prefix_hits": 0.0,
        "joules": None,
        "failures": (),
    }
    return Taken(Sample(**(values | changes)), {0: "one", 1: "two"}, Gaps((0.01, 0.02), (0.05,)))


def start(leg: str, load: float = 0.2, held: int = 0) -> Start:
    resident = (300 if leg == "mixed" else 280) << 20
    return Start(leg, load + 0.3, {"open": 0.1, "total": load}, resident, held, GRAPHS, {})


def measured(factors: Mapping[str, Mapping[str, float]], pairs: int = 10) -> Results:
    """All pairs of every cell; ``factors``: by cell and metric, of mixed against separate."""
    results = Results(configs=dict.fromkeys(("separate", "mixed"), CONFIG))
    for cell, own in factors.items():
        for pair in range(pairs):
            for leg in ("separate", "mixed"):
                results.taken.append(taken(cell, leg, pair, own))
                results.starts.append(start(leg, 0.2 + 0.001 * pair))
    return results


def report(
    factors: Mapping[str, float] | None = None, error: str | None = None, **options: Any
) -> Report:
    """Of one cell: chat at 8 streams."""
    cells = load_cells(plan(8))
    results = measured({cells[0].name: factors or {}})
    return build(ask(cells, **options), results, "2026-01-01T00:00:00+00:00", 60.0, error)


def grid_report(better: Mapping[tuple[int, int], float]) -> Report:
    """A heat map of throughput; ``better``: factors by prompt length and streams."""
    cells = grid_cells(plan(2, 4), (64, 256), 16)
    factors = {
        cell.name: {"tok_s": better.get((cell.prompt_tokens or 0, cell.concurrency), 1.0)}
        for cell in cells
    }
    return build(ask(cells, "tok_s"), measured(factors), "2026-01-01T00:00:00+00:00", 60.0, None)
