"""Metrics as text for Prometheus: its own format, or OpenMetrics for a scraper that asks for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from taskharbor.clock import MICROS_PER_SECOND
from taskharbor.errors import ConfigurationError
from taskharbor.telemetry.metrics import catalogue
from taskharbor.telemetry.metrics.catalogue import PREFIX, Metric
from taskharbor.telemetry.metrics.cells import JOB_METRICS, PROCESS_METRICS
from taskharbor.telemetry.metrics.store_gauges import Gauges
from taskharbor.telemetry.metrics.totals import Snapshot

try:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
    from prometheus_client.core import Metric as Family
    from prometheus_client.exposition import choose_encoder
except ImportError as error:
    raise ConfigurationError(
        f"metrics need the extra: pip install 'taskharbor[metrics]' ({error.name} is missing)"
    ) from None

_JOB = catalogue.offsets(JOB_METRICS)
_PROCESS = catalogue.offsets(PROCESS_METRICS)
_GAUGES = catalogue.of(catalogue.Source.STORE)


def checked_prefix(prefix: str) -> str:
    """Return the prefix of exported names, or raise why it cannot be one. Without any, names are bare."""
    allowed = prefix.isascii() and prefix.replace("_", "a").isalnum() and not prefix[0].isdigit()
    if prefix and not allowed:
        raise ConfigurationError(
            f"{prefix!r} cannot begin the name of a metric; use letters, digits and _, such as {PREFIX!r}, or nothing"
        )
    return prefix


class Renderer:
    """Builds the text of a scrape from what was counted, and from the store's gauges where they are wanted."""

    def __init__(
        self,
        snapshot: Callable[[], Snapshot] | None = None,
        gauges: Callable[[], Gauges] | None = None,
        *,
        prefix: str = PREFIX,
    ) -> None:
        self._snapshot = snapshot
        self._gauges = gauges
        self._prefix = checked_prefix(prefix)

    def render(self, accept: str = "") -> tuple[str, bytes]:
        """Return the content type and the text of a scrape, in the format that the Accept header asks for."""
        encode, content_type = choose_encoder(accept)
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        return content_type, encode(registry)

    def collect(self) -> Iterator[Family]:
        """Build the families; prometheus_client calls this, also for a registry of the application's own."""
        if self._snapshot is not None:
            yield from worker_families(self._snapshot(), self._prefix)
        if self._gauges is not None:
            yield from store_families(self._gauges(), self._prefix)


def worker_families(snapshot: Snapshot, prefix: str = PREFIX) -> Iterator[Family]:
    """Build the families of what workers have counted."""
    jobs = sorted(snapshot.jobs.items())
    for metric in JOB_METRICS:
        yield _family(metric, prefix, [(labels, words, _JOB[metric.name]) for labels, words in jobs])
    for metric in PROCESS_METRICS:
        yield _family(metric, prefix, [((), snapshot.process, _PROCESS[metric.name])])


def store_families(gauges: Gauges, prefix: str = PREFIX) -> Iterator[Family]:
    """Build the families of the store's gauges, of those that could be read."""
    for metric in _GAUGES:
        family = GaugeMetricFamily(prefix + metric.name, metric.meaning, labels=metric.labels)
        for labels, value in sorted(gauges.get(metric.name, {}).items()):
            family.add_metric(labels, value)
        yield family


def _family(metric: Metric, prefix: str, rows: Sequence[tuple[tuple[str, ...], list[int], int]]) -> Family:
    name = prefix + metric.name
    if metric.kind == "counter":
        counter = CounterMetricFamily(name, metric.meaning, labels=metric.labels)
        for labels, words, start in rows:
            counter.add_metric(labels, words[start])
        return counter
    scale = MICROS_PER_SECOND if metric.in_micros else 1
    bounds = [str(bound / scale) for bound in metric.bounds] + ["+Inf"]
    histogram = HistogramMetricFamily(name, metric.meaning, labels=metric.labels)
    for labels, words, start in rows:
        counts = words[start : start + len(bounds)]
        if metric.labels and not any(counts):
            continue  # most tasks are never retried: no series for that until one is
        total = 0
        cumulative: list[tuple[str, float]] = []
        for bound, count in zip(bounds, counts, strict=True):
            total += count
            cumulative.append((bound, total))
        histogram.add_metric(labels, cumulative, words[start + len(bounds)] / scale)
    return histogram
