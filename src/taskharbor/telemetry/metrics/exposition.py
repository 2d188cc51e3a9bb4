"""What a scrape shows: text in the format that the scraper asks for, or families for an application's registry."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from taskharbor.clock import MICROS_PER_SECOND
from taskharbor.errors import ConfigurationError
from taskharbor.telemetry.metrics import catalogue
from taskharbor.telemetry.metrics.catalogue import PREFIX, Metric
from taskharbor.telemetry.metrics.cells import JOB_METRICS, PROCESS_METRICS
from taskharbor.telemetry.metrics.store_gauges import Gauges
from taskharbor.telemetry.metrics.text import TextWriter, bounds_of
from taskharbor.telemetry.metrics.totals import Snapshot

try:
    from prometheus_client import exposition as client_exposition
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
    from prometheus_client.core import Metric as Family
except ImportError:
    raise ConfigurationError(
        "metrics need the extra: pip install 'taskharbor[metrics]' (prometheus_client is missing)"
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
    """Shows what was counted, and the store's gauges where they are wanted.

    An application registers it with a registry of prometheus_client; TaskHarbor's own endpoints call `render`.
    """

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
        self._writer = TextWriter(prefix)

    def render(self, accept: str = "") -> tuple[str, bytes]:
        """Return the content type and the text of a scrape, in the format that the Accept header asks for."""
        _, content_type = client_exposition.choose_encoder(accept)
        snapshot = None if self._snapshot is None else self._snapshot()
        gauges = None if self._gauges is None else self._gauges()
        openmetrics = content_type.startswith("application/openmetrics-text")
        return content_type, self._writer.write(snapshot, gauges, openmetrics=openmetrics)

    def collect(self) -> Iterator[Family]:
        """Build the families; a registry of prometheus_client calls this."""
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
    bounds = bounds_of(metric)
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
