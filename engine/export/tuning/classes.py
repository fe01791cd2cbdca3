"""Row classes: which graphs share one choice of kernels for a shape."""

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from engine.core.schema import Graph, Kind, Tuning
from engine.export.tuning.questions import Batch

Role = Literal["generated", "prompt", "mixed"]
ROLE_OF_KIND: dict[Kind, Role] = {
    Kind.DECODE: "generated",
    Kind.PREFILL: "prompt",
    Kind.MIXED: "mixed",
}
BOUNDS = (1, 8, 32, 128)
"""Upper bounds of the classes of profile ``balanced``; more rows are class "many"."""
CONTEXT = 512
"""Keys before each measured row, where the model's length allows them."""


class RowClass(Struct, frozen=True):
    """Graphs of one role and similar capacity. sample: the one that is measured, the largest."""

    role: Role
    rows: str
    graphs: tuple[str, ...]
    sample: Graph

    @property
    def name(self) -> str:
        return f"{self.role}-{self.rows}"

    def batch(self, max_model_len: int) -> Batch:
        """The batch that stands for the class: the sample's capacity; of mixed rows a quarter are
        generated, as far as its sequences allow."""
        tokens, seqs = self.sample.domain.tokens, self.sample.domain.seqs
        generated = {"generated": tokens, "prompt": 0, "mixed": min(tokens // 4, seqs // 2)}
        rows = generated[self.role]
        room = max_model_len - max(1, tokens - rows)
        return Batch(rows, tokens - rows, max(0, min(CONTEXT, room)))


def row_classes(graphs: Sequence[Graph], profile: Tuning) -> tuple[RowClass, ...]:
    """Group the graphs: by ``BOUNDS``, or with profile ``audit`` each by itself."""
    grouped: dict[tuple[Role, str], list[Graph]] = {}
    for graph in graphs:
        if graph.kind in ROLE_OF_KIND:
            rows = graph.domain.tokens
            name = str(rows) if profile == "audit" else _bound(rows)
            grouped.setdefault((ROLE_OF_KIND[graph.kind], name), []).append(graph)
    return tuple(
        RowClass(
            role,
            name,
            tuple(graph.id for graph in members),
            max(members, key=lambda graph: graph.domain.tokens),
        )
        for (role, name), members in grouped.items()
    )


def _bound(rows: int) -> str:
    return next((str(bound) for bound in BOUNDS if rows <= bound), "many")
