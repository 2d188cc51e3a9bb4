"""docs/metrics.md lists every metric and every alert, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from taskharbor.telemetry.metrics import buckets, catalogue

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "metrics.md").read_text()


def test_the_page_lists_each_metric_with_its_type_and_labels():
    rows = re.findall(r"^\| `(taskharbor_\w+)` \| (\w+) \| ([^|]*) \| ([^|]*) \|$", PAGE, re.MULTILINE)
    assert [
        (name, kind, tuple(re.findall(r"`(\w+)`", labels)), meaning) for name, kind, labels, meaning in rows
    ] == [
        (f"taskharbor_{metric.exported}", metric.kind, metric.labels, metric.meaning)
        for metric in catalogue.METRICS
    ]


def test_every_metric_that_the_page_names_elsewhere_exists():
    names = {catalogue.PREFIX + metric.exported for metric in catalogue.METRICS}
    named = {re.sub(r"_(bucket|sum|count)$", "", name) for name in re.findall(r"\btaskharbor_[a-z]\w+", PAGE)}
    assert named == names


def test_the_page_lists_each_alert():
    rules = (ROOT / "deploy" / "prometheus" / "alerts.yml").read_text()
    listed = re.findall(r"^\| `(TaskHarbor\w+)` \|", PAGE, re.MULTILINE)
    assert listed == re.findall(r"- alert: (\w+)", rules)


def test_the_page_lists_the_bounds_of_times():
    [sentence] = re.findall(r"The bounds of times are (.*?)\. So", PAGE, re.DOTALL)
    scales = {"ms": 0.001, "s": 1, "min": 60, "hours": 3_600}
    found: list[float] = []
    waiting: list[float] = []
    for word in re.findall(r"[\d.]+|\bms\b|\bs\b|\bmin\b|\bhours\b", sentence):
        if word in scales:
            found += [round(number * scales[word], 6) for number in waiting]
            waiting = []
        else:
            waiting.append(float(word))
    assert tuple(found) == buckets.SECONDS
