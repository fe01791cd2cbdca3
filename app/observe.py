"""Counters of the HTTP face. Labels hold route templates, never paths or names from clients."""

from prometheus_client import CollectorRegistry, Counter

METHODS = frozenset({"GET", "POST", "HEAD", "OPTIONS", "PUT", "PATCH", "DELETE"})


class HttpMetrics:
    """``flare_http_requests_total{method,route,status}`` in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "flare_http_requests",
            "Answered HTTP requests; route is the template or 'unmatched'; status 0: no answer.",
            ("method", "route", "status"),
            registry=self.registry,
        )

    def count(self, method: str, route: str, status: int) -> None:
        known = method if method in METHODS else "other"
        self._requests.labels(known, route, str(status)).inc()
