"""Prometheus metrics of one engine, in a registry of their own. Labels hold no user text."""

from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from engine.batch.plan import Launch
from engine.core.schema import Graph, Kind
from engine.histogram import TokenHistogram
from engine.runtime.results import LaunchResult
from engine.schedule.sequence import Sequence
from engine.types import FinishReason

LATENCY = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
STEP = (0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1.0, 2.5)
SPEC_KINDS = (Kind.VERIFY, Kind.DRAFT)


class EngineMetrics:
    """All series of an engine. ``graphs``: the retained ones, whose series start at zero.

    A live switch adds graphs with ``know``; what was counted of those it prunes stays.

    The step kind is what the step carried: decode rows, prefill chunks, or both ("mixed"),
    whichever family of graphs served it.
    """

    def __init__(self, graphs: Iterable[Graph]) -> None:
        self.registry = CollectorRegistry()
        self._requests()
        self._latencies()
        self._cache()
        self._launches()
        self.know(graphs)

    def _requests(self) -> None:
        registry = self.registry
        self.running = Gauge("flare_requests_running", "Sequences running", registry=registry)
        self.waiting = Gauge("flare_requests_waiting", "Sequences waiting", registry=registry)
        self.prompt_tokens = Counter(
            "flare_prompt_tokens", "Prompt tokens of admitted sequences", registry=registry
        )
        self.generation_tokens = Counter(
            "flare_generation_tokens", "Tokens generated", registry=registry
        )
        finished = Counter(
            "flare_requests_finished", "Sequences ended", ["reason"], registry=registry
        )
        self._finished = {reason: finished.labels(reason.value) for reason in FinishReason}
        self.preemptions = Counter(
            "flare_preemptions", "Sequences preempted, to be recomputed", registry=registry
        )

    def _latencies(self) -> None:
        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(name, text, buckets=buckets, registry=self.registry)

        self.first_token = histogram(
            "flare_time_to_first_token_seconds", "Arrival to first token", LATENCY
        )
        self.inter_token = TokenHistogram(
            "flare_inter_token_latency_seconds",
            "Between two tokens of a sequence",
            STEP,
            self.registry,
        )
        self.end_to_end = histogram(
            "flare_end_to_end_latency_seconds", "Arrival to last token", LATENCY
        )
        self.queue_time = histogram("flare_queue_time_seconds", "Arrival to first step", LATENCY)

    def _cache(self) -> None:
        registry = self.registry
        self.kv_used = Gauge(
            "flare_kv_blocks_used", "Cache blocks that sequences hold", registry=registry
        )
        self.kv_free = Gauge(
            "flare_kv_blocks_free", "Cache blocks that can be taken", registry=registry
        )
        self.kv_idle = Gauge(
            "flare_kv_blocks_idle",
            "Free blocks whose content the prefix cache remembers",
            registry=registry,
        )
        self.prefix_queries = Counter(
            "flare_prefix_cache_queries", "Prompt tokens looked up", registry=registry
        )
        self.prefix_hits = Counter(
            "flare_prefix_cache_hits", "Prompt tokens found", registry=registry
        )

    def _launches(self) -> None:
        registry = self.registry
        self._launched = Counter(
            "flare_graph_launches", "Replays of a graph", ["kind", "graph"], registry=registry
        )
        self._padding = Counter(
            "flare_padded_tokens",
            "Rows of graph capacity beyond the rows present",
            ["kind"],
            registry=registry,
        )
        self._launch_counts: dict[str, Counter] = {}
        self._padded: dict[Kind, Counter] = {}
        steps = Histogram(
            "flare_step_duration_seconds",
            "Launches of one step",
            ["kind"],
            buckets=STEP,
            registry=registry,
        )
        self._steps = {kind: steps.labels(kind) for kind in ("decode", "prefill", "mixed")}
        self.proposed = Counter(
            "flare_speculative_proposed", "Draft tokens proposed", registry=registry
        )
        self.accepted = Counter(
            "flare_speculative_accepted", "Draft tokens accepted", registry=registry
        )
        self._phases = Gauge(
            "flare_load_phase_seconds", "Time to load, by phase", ["phase"], registry=registry
        )

    def know(self, graphs: Iterable[Graph]) -> None:
        """Have series for these graphs; those of known ones go on."""
        for graph in graphs:
            kind = graph.kind.value
            self._launch_counts.setdefault(graph.id, self._launched.labels(kind, graph.id))
            self._padded.setdefault(graph.kind, self._padding.labels(kind))

    def loaded(self, phases: Mapping[str, float]) -> None:
        """Record how long each phase of loading took."""
        for phase, seconds in phases.items():
            self._phases.labels(phase).set(seconds)

    def watch(self, gauges: Mapping[Gauge, Callable[[], float]]) -> None:
        """Read these gauges from the engine whenever they are scraped."""
        for gauge, read in gauges.items():
            gauge.set_function(read)

    def admitted(self, sequence: Sequence, queued: float) -> None:
        """Record a sequence's first admission, ``queued`` seconds after its arrival."""
        self.queue_time.observe(queued)
        self.prompt_tokens.inc(sequence.prompt_len)
        if sequence.table.lookup:
            self.prefix_queries.inc(sequence.prompt_len)
            self.prefix_hits.inc(sequence.cached)

    def token(self, gap: float | None, age: float) -> None:
        """Time a token: ``gap`` seconds after the last one, or the first, at ``age``."""
        if gap is None:
            self.first_token.observe(age)
        else:
            self.inter_token.observe(gap)

    def finished(self, reason: FinishReason) -> None:
        """Count an ended sequence."""
        self._finished[reason].inc()

    def step(self, results: Iterable[LaunchResult]) -> None:
        """Count the launches of a step and its duration."""
        seconds, tokens, kinds = 0.0, 0, set[str]()
        for result in results:
            launch = result.launch
            seconds += result.seconds
            self._launch_counts[launch.graph.id].inc()
            self._padded[launch.graph.kind].inc(launch.padding)
            kinds.add(_carried(launch))
            tokens += len(result.drawn)
            if launch.drafts:
                self.proposed.inc(launch.drafts)
                self.accepted.inc(len(result.drawn) - len(launch.segments))
        self.generation_tokens.inc(tokens)
        if kinds:
            self._steps[kinds.pop() if len(kinds) == 1 else "mixed"].observe(seconds)


def _carried(launch: Launch) -> str:
    return launch.graph.kind.value if launch.graph.kind not in SPEC_KINDS else "decode"
