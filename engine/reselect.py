"""Resolves a live switch against the core on disk: what loading decides, and nothing else."""

from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from engine.core.errors import DigestMismatchError
from engine.core.reader import Core, open_core
from engine.core.validate import validate
from engine.describe import rank_values, served_graphs
from engine.load.plan import RankPlan
from engine.load.prune import count, prune
from engine.load.select import LoadLimits, select
from engine.switch import Choice


class CoreChooser(Struct, frozen=True):
    """Implements ``engine.switch.Chooser``. The core is opened anew for every switch, so that
    between switches nothing of the graphs that were pruned is in memory.

    limits: those of the load. workspace_bytes: what the device took then, enough for any choice.
    """

    path: Path
    limits: LoadLimits
    workspace_bytes: int

    def __call__(self, plan: RankPlan, requested: bool | None, held: frozenset[str]) -> Choice:
        """Select and prune. Raises CoreError when the core on disk is another one or damaged,
        SelectionError when the request cannot be served."""
        with open_core(self.path, hash_storage=False) as core:  # no processor is idle
            _check_same(core, plan)
            validate(core.manifest)
            return self._choose(core, plan, requested, held)

    def _choose(
        self, core: Core, plan: RankPlan, requested: bool | None, held: frozenset[str]
    ) -> Choice:
        catalog = core.manifest.catalog
        selection = select(catalog, core.manifest.default_mixed, requested, self.limits)
        pruned = prune(catalog, selection)
        names = {tensor.name for tensor in pruned.storage if tensor.rank == plan.rank}
        missing = names - held
        if missing:
            core.verify_storage()
        told = replace(
            plan, requested=requested, family=selection.family, retained=selection.retained
        )
        return Choice(
            told,
            pruned,
            {name: core.tensor(name, plan.rank) for name in missing},
            served_graphs(selection, count(catalog, pruned), self.workspace_bytes),
            (rank_values(told),),
        )


def _check_same(core: Core, plan: RankPlan) -> None:
    if core.digest != plan.catalog_digest:
        raise DigestMismatchError(
            f"{plan.core}: catalog digest: expected {plan.catalog_digest}, found {core.digest}",
            hint="the core was replaced since the server started; restart it to serve the new one",
        )
