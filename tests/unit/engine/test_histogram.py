"""The token histogram shows what the library's own would."""

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram, generate_latest

from engine.histogram import TokenHistogram

BUCKETS = (0.001, 0.01, 0.5, 1.0, 30.0)


@given(st.lists(st.sampled_from([0.0, 0.0005, 0.001, 0.002, 0.5, 0.75, 1.0, 29.0, 31.0, 1e6])))
def test_it_shows_what_the_librarys_own_shows(values: list[float]) -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    mine = TokenHistogram("gap_seconds", "Between tokens", BUCKETS, ours)
    other = Histogram("gap_seconds", "Between tokens", buckets=BUCKETS, registry=theirs)
    for value in values:
        mine.observe(value)
        other.observe(value)

    def lines(registry: CollectorRegistry) -> list[bytes]:
        return [x for x in generate_latest(registry).splitlines() if b"_created" not in x]

    assert lines(ours) == lines(theirs)
