"""Resolves a live switch against the loaded core: what loading decides, and nothing else."""

from msgspec import Struct
from msgspec.structs import replace

from engine.core.reader import Core
from engine.describe import rank_values, served_graphs
from engine.load.plan import RankPlan
from engine.load.prune import count, prune
from engine.load.select import LoadLimits, select
from engine.switch import Choice


class CoreChooser(Struct, frozen=True):
    """Implements ``engine.switch.Chooser``. The catalog stays in memory as it was validated, and
    the storage mapped as it was hashed: a switch reads no file, whatever lies at the path by now.

    limits: those of the load. workspace_bytes: what the device took then, enough for any choice.
    """

    core: Core
    limits: LoadLimits
    workspace_bytes: int

    def __call__(self, plan: RankPlan, requested: bool | None, held: frozenset[str]) -> Choice:
        """Select and prune. Raises SelectionError when the request cannot be served."""
        catalog = self.core.manifest.catalog
        selection = select(catalog, self.core.manifest.default_mixed, requested, self.limits)
        pruned = prune(catalog, selection)
        names = {tensor.name for tensor in pruned.storage if tensor.rank == plan.rank}
        told = replace(
            plan, requested=requested, family=selection.family, retained=selection.retained
        )
        return Choice(
            told,
            pruned,
            {name: self.core.tensor(name, plan.rank) for name in names - held},
            served_graphs(selection, count(catalog, pruned), self.workspace_bytes),
            (rank_values(told),),
        )
