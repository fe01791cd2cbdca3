"""The model runner of one rank: prepare, replay, sample."""

from collections.abc import Mapping, Sequence
from time import perf_counter

from engine.batch.plan import Launch
from engine.device.base import Device, Executable
from engine.runtime.grammar import SlotGrammars
from engine.runtime.prepare import fill, rows_of
from engine.runtime.results import LaunchResult
from engine.runtime.sampling import draw, score
from engine.runtime.tables import SlotTables
from engine.schedule.output import SchedulerOutput
from engine.schedule.sequence import Sequence as Seq


class ModelRunner:
    """Owns a device's inputs and sampler. One thread at a time may call it."""

    def __init__(
        self,
        device: Device,
        executables: Mapping[str, Executable],
        tables: SlotTables,
        grammars: SlotGrammars,
    ) -> None:
        self._device = device
        self._executables = dict(executables)
        self._tables = tables
        self._grammars = grammars

    def adopt(self, executables: Mapping[str, Executable]) -> None:
        """Replay these from now on; the ones before are released."""
        self._executables = dict(executables)

    def execute(self, output: SchedulerOutput, launches: Sequence[Launch]) -> list[LaunchResult]:
        """Run a step's launches, in order; each sees what the earlier ones wrote."""
        self.apply(output)
        return [self._run(launch) for launch in launches]

    def apply(self, output: SchedulerOutput) -> None:
        """Follow the slots and blocks that changed hands."""
        for slot in output.released:
            self._tables.stop(slot)
            self._device.sampler.clear(slot)
            self._grammars.stop(slot)
        for sequence in output.admitted:
            self._start(sequence)
        self._tables.sync(segment.sequence for segment in output.segments)

    def _start(self, sequence: Seq) -> None:
        request = sequence.request
        self._tables.start(sequence)
        self._grammars.start(sequence)
        self._device.sampler.set(
            sequence.slot,
            request.sampling,
            sorted(sequence.stops),
            request.prompt_ids,
            sequence.output,
        )

    def _run(self, launch: Launch) -> LaunchResult:
        began = perf_counter()
        rows = rows_of(launch)
        if launch.drafts:
            self._tables.draft(launch.segments)
        shape = fill(self._device.inputs, self._tables, launch, rows)
        self._executables[launch.graph.id].replay(shape)
        sampler = self._device.sampler
        scored = score(sampler, launch, rows)
        drawn = draw(sampler, self._tables, self._grammars, launch, rows)
        return LaunchResult(launch, drawn, scored, perf_counter() - began)

    def scrub(self, blocks: Sequence[int]) -> None:
        """Zero blocks whose content is not finite, so that their next owner never reads it."""
        self._device.scrub(blocks)
