"""The text of a scrape, written straight from the counts.

200 queues and tasks have up to 17,000 samples. prometheus_client makes an object of each of them and formats it by
itself, which takes most of a scrape's time. Here one template writes all samples of a histogram.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

from taskharbor.clock import MICROS_PER_SECOND
from taskharbor.telemetry.metrics import catalogue
from taskharbor.telemetry.metrics.catalogue import Metric
from taskharbor.telemetry.metrics.cells import JOB_METRICS, PROCESS_METRICS
from taskharbor.telemetry.metrics.store_gauges import Gauges
from taskharbor.telemetry.metrics.totals import Snapshot

END = "# EOF\n"  # of OpenMetrics

_JOB = catalogue.offsets(JOB_METRICS)
_PROCESS = catalogue.offsets(PROCESS_METRICS)
_GAUGES = catalogue.of(catalogue.Source.STORE)
_LABELS = "\0"  # where a template has the labels of a series

# A counter or histogram: where its cells begin, and the template of the samples of one series.
_Template = tuple[Metric, int, str]


class TextWriter:
    """Writes metrics in the format of Prometheus, or in OpenMetrics: they differ in the heads and in the end."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._jobs = [(each, _JOB[each.name], _template(each, prefix)) for each in JOB_METRICS]
        self._process = [(each, _PROCESS[each.name], _template(each, prefix)) for each in PROCESS_METRICS]

    def write(self, snapshot: Snapshot | None, gauges: Gauges | None, *, openmetrics: bool) -> bytes:
        """Write what workers have counted and what the store says; None leaves either out."""
        parts: list[str] = []
        if snapshot is not None:
            jobs = [
                (_label_text(("queue", "task"), pair).replace("%", "%%"), words)
                for pair, words in sorted(snapshot.jobs.items())
            ]
            parts += self._counted(self._jobs, jobs, openmetrics)
            parts += self._counted(self._process, [("", snapshot.process)], openmetrics)
        if gauges is not None:
            for metric in _GAUGES:
                parts.append(self._head(metric, openmetrics))
                parts += _gauge_lines(self._prefix + metric.name, metric, gauges)
        if openmetrics:
            parts.append(END)
        return "".join(parts).encode()

    def _counted(
        self, templates: Iterable[_Template], series: Sequence[tuple[str, list[int]]], openmetrics: bool
    ) -> Iterator[str]:
        for metric, start, template in templates:
            yield self._head(metric, openmetrics)
            end, is_counter = start + len(metric.bounds) + 1, metric.kind == "counter"
            scale = MICROS_PER_SECOND if metric.in_micros else 1
            for labels, words in series:
                if is_counter:
                    yield template.replace(_LABELS, labels) % words[start]
                    continue
                buckets = list(accumulate(words[start:end]))  # cumulative; the last one is the count
                if buckets[-1] or not metric.labels:  # most tasks are never retried: no series until one is
                    values = (*buckets, buckets[-1], words[end] / scale)
                    yield template.replace(_LABELS, labels) % values

    def _head(self, metric: Metric, openmetrics: bool) -> str:
        name = self._prefix + (metric.name if openmetrics else metric.exported)
        return f"# HELP {name} {metric.meaning}\n# TYPE {name} {metric.kind}\n"


def _template(metric: Metric, prefix: str) -> str:
    name = prefix + metric.exported
    labels = f"{{{_LABELS}}}" if metric.labels else ""
    if metric.kind == "counter":
        return f"{name}{labels} %d\n"
    comma = f"{_LABELS}," if metric.labels else ""
    buckets = [f'{name}_bucket{{{comma}le="{bound}"}} %d\n' for bound in bounds_of(metric)]
    return "".join(buckets) + f"{name}_count{labels} %d\n{name}_sum{labels} %r\n"


def bounds_of(metric: Metric) -> list[str]:
    """Return the upper bounds of a histogram's buckets, as the label `le` has them."""
    scale = MICROS_PER_SECOND if metric.in_micros else 1
    return [*(str(bound / scale) for bound in metric.bounds), "+Inf"]


def _gauge_lines(name: str, metric: Metric, gauges: Gauges) -> Iterator[str]:
    for values, value in sorted(gauges.get(metric.name, {}).items()):
        labels = f"{{{_label_text(metric.labels, values)}}}" if values else ""
        yield f"{name}{labels} {float(value)!r}\n"


def _label_text(names: tuple[str, ...], values: tuple[str, ...]) -> str:
    escaped = (
        value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n").replace(_LABELS, "\ufffd")
        for value in values
    )
    return ",".join([f'{name}="{value}"' for name, value in zip(names, escaped, strict=True)])
