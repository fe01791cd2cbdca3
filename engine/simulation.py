"""Serving on a virtual clock: the real scheduler and planner, and a model of steps' times."""

from collections import deque
from collections.abc import Iterable, Sequence
from heapq import heappop, heappush

from msgspec import Struct, field

from engine.batch.plan import Launch, Planner
from engine.cache.kv import KVCache
from engine.config import EngineConfig
from engine.core.reader import open_core
from engine.core.schema import Family, Manifest
from engine.core.validate import validate
from engine.errors import SettingsError
from engine.factory import plan_load
from engine.schedule.admission import Admission
from engine.schedule.output import Segment
from engine.schedule.pace import Pace, attention_depth
from engine.schedule.scheduler import Scheduler
from engine.schedule.sequence import Sequence as Running
from engine.steptimes import LaunchLoad, StepTimes
from engine.types import GenerationRequest, SamplingParams


class StepTimesMissingError(SettingsError):
    """The core holds no model of how long its steps take."""


class SimulatedRequest(Struct, frozen=True):
    """One request. at: seconds at which it is due, None: as soon as a stream is free. A later
    group begins when all of the group before have ended, where ``at`` is None."""

    prompt_ids: tuple[int, ...]
    max_tokens: int
    at: float | None = None
    group: int = 0


class Overheads(Struct, frozen=True):
    """Seconds that are not the device's: of a request before it can be scheduled (one after
    another), of a step, and of each token that a step gives (server and client).

    decode, prompt: how many times as long as in the core's step times the device takes, of steps
    without and with rows of prompts: on another machine, or beside a server and its clients.
    """

    request: float = 0.0
    step: float = 0.0
    token: float = 0.0
    decode: float = 1.0
    prompt: float = 1.0


class SimulatedAnswer(Struct, frozen=True):
    """When a request was due, and when each of its tokens came, in seconds of the clock."""

    due: float
    arrivals: tuple[float, ...]


class Simulated(Struct, frozen=True):
    """What one run of a load gave. answers: in the order of the requests. device: seconds of the
    core's step times that passed in steps of "decode" rows alone, and of "prompt" rows too."""

    family: Family
    seconds: float
    answers: tuple[SimulatedAnswer, ...]
    steps: int
    launches: dict[str, int]
    preemptions: int
    device: dict[str, float]


class Simulator:
    """Serves loads as ``config`` would, on the core's step times.

    As on a server, what the pace has learnt from one load holds for the next.

    Raises CoreError, SelectionError, and StepTimesMissingError when a retained graph has none.
    """

    def __init__(self, config: EngineConfig, overheads: Overheads) -> None:
        with open_core(config.core) as core:
            self._manifest: Manifest = core.manifest
        validate(self._manifest)
        self._config = config
        self._plan = plan_load(config, self._manifest)
        self._times = StepTimes(self._manifest.catalog)
        self._overheads = overheads
        stall, depth = config.stall_seconds, attention_depth(self._manifest.model)
        self._pace = Pace(stall, depth) if stall else None
        missing = self._times.missing(self._plan.pruned.graphs)
        if missing:
            raise StepTimesMissingError(
                f"{config.core} has no step times of {', '.join(missing[:4])}",
                "export it with --tuning balanced, or with --step-times: replays are timed then",
            )

    def run(self, requests: Sequence[SimulatedRequest], concurrency: int) -> Simulated:
        """Serve the requests, at most ``concurrency`` at once, on an idle engine."""
        model, told = self._manifest.model, self._plan.ranks[0]
        cache = KVCache(told.num_blocks + 1, model.kv.block_size, self._config.prefix_cache)
        scheduler = Scheduler(cache, told.max_num_seqs, told.max_step_tokens, self._pace)
        planner = Planner(self._plan.pruned.graphs)
        admission = Admission(cache, model.vocab_size, told.max_model_len, frozenset())
        server = _Server(scheduler, planner, admission, self._times, self._overheads)
        seconds = _drive(server, requests, _Streams(requests, concurrency))
        answers = tuple(
            SimulatedAnswer(due, tuple(arrivals))
            for due, arrivals in zip(server.due, server.arrivals, strict=True)
        )
        family = self._plan.selection.family
        return Simulated(
            family,
            seconds,
            answers,
            server.steps,
            server.launches,
            server.preemptions,
            server.device,
        )


class _Streams:
    """The client's side: which requests are sent when."""

    def __init__(self, requests: Sequence[SimulatedRequest], concurrency: int) -> None:
        self._free = concurrency
        self._groups: deque[deque[int]] = deque()
        self._at = [request.at for request in requests]
        last: int | None = None
        for index in sorted(range(len(requests)), key=lambda i: (requests[i].at or 0.0, i)):
            if requests[index].group != last:
                self._groups.append(deque())
                last = requests[index].group
            self._groups[-1].append(index)
        self._open = 0

    def due(self, now: float) -> Iterable[int]:
        """Take what is sent now."""
        while self._groups and self._free:
            group = self._groups[0]
            if not group:
                if self._open:
                    return
                self._groups.popleft()
                continue
            at = self._at[group[0]]
            if at is not None and at > now:
                return
            self._free -= 1
            self._open += 1
            yield group.popleft()

    def ended(self) -> None:
        self._free += 1
        self._open -= 1

    def next_at(self) -> float | None:
        """When the next request is due that waits for nothing but the clock."""
        if not self._free or not self._groups or not self._groups[0]:
            return None
        return self._at[self._groups[0][0]]


class _Server(Struct):
    """The engine's side. due, arrivals: of each request, in order."""

    scheduler: Scheduler
    planner: Planner
    admission: Admission
    times: StepTimes
    overheads: Overheads
    due: list[float] = field(default_factory=list)
    arrivals: list[list[float]] = field(default_factory=list)
    steps: int = 0
    launches: dict[str, int] = field(default_factory=dict)
    preemptions: int = 0
    device: dict[str, float] = field(default_factory=lambda: {"decode": 0.0, "prompt": 0.0})

    def add(self, index: int, request: SimulatedRequest) -> None:
        sampling = SamplingParams(max_tokens=request.max_tokens, temperature=0.0, ignore_eos=True)
        made = GenerationRequest(str(index), request.prompt_ids, sampling)
        for sequence in self.admission.sequences([made], index):
            self.scheduler.add(sequence)

    @property
    def busy(self) -> bool:
        return self.scheduler.running + self.scheduler.waiting > 0

    def step(self, now: float) -> tuple[float, list[int]]:
        """Serve one step from ``now`` on; return its end, and the requests that ended with it."""
        output = self.scheduler.schedule()
        launches = self.planner.plan(output)
        if not launches:
            raise RuntimeError("sequences are waiting, but none can be scheduled")
        seconds = sum(self.times.seconds(load_of(launch)) for launch in launches)
        carried = "prompt" if output.prompts else "decode"
        self.device[carried] += seconds
        device = seconds * getattr(self.overheads, carried)
        drawing = [s.sequence for launch in launches for s in launch.segments if s.samples]
        end = now + device + self.overheads.step + len(drawing) * self.overheads.token
        self.steps += 1
        self.preemptions += output.preempted
        for launch in launches:
            kind = launch.graph.kind.value
            self.launches[kind] = self.launches.get(kind, 0) + 1
        self.scheduler.complete(output, device)
        return end, [int(s.request.id) for s in drawing if self._ends(s, end)]

    def _ends(self, sequence: Running, now: float) -> bool:
        """Give a sequence its next token; whether that was its last."""
        sequence.output.append(0)
        self.arrivals[int(sequence.request.id)].append(now)
        if sequence.left == 0:
            self.scheduler.remove(sequence)
        return sequence.left == 0


def _drive(server: _Server, requests: Sequence[SimulatedRequest], streams: _Streams) -> float:
    """Run the clock until every request has ended; return the last token's time."""
    server.due = [0.0] * len(requests)
    server.arrivals = [[] for _ in requests]
    now = received = 0.0
    coming: list[tuple[float, int]] = []
    while True:
        for index in streams.due(now):
            at = requests[index].at
            server.due[index] = now if at is None else at
            received = max(received, now) + server.overheads.request
            heappush(coming, (received, index))
        while coming and coming[0][0] <= now:
            _, index = heappop(coming)
            server.add(index, requests[index])
        if server.busy:
            now, ended = server.step(now)
            for _ in ended:
                streams.ended()
            continue
        upcoming = (streams.next_at(), *(time for time, _ in coming[:1]))
        times = [time for time in upcoming if time is not None]
        if not times:
            return now
        now = max(now, min(times))


def load_of(launch: Launch) -> LaunchLoad:
    """Return what the step-time model needs to know of a launch."""
    decode = [s for s in launch.segments if s.generated and s.count == 1]
    others = [s for s in launch.segments if not (s.generated and s.count == 1)]
    return LaunchLoad(
        launch.graph.id,
        len(decode),
        float(sum(segment.end for segment in decode)),
        sum(segment.count for segment in others),
        sum(map(_keys, others)),
    )


def _keys(segment: Segment) -> float:
    """Keys that a segment's rows see, in all: row i from 0 sees start + i + 1."""
    return segment.count * (segment.start + (segment.count + 1) / 2)
