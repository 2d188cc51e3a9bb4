"""A load on a worker's meter makes the alerts on retries fire, and a healthy one leaves them quiet.

What the meter has counted is scraped every minute of the load. The samples become the input of promtool.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]  # it says nothing of its types
from prometheus_client.parser import text_string_to_metric_families

from taskharbor.records import AttemptStatus, Reason, State
from taskharbor.telemetry.metrics.cells import Cells
from taskharbor.telemetry.metrics.exposition import Renderer
from taskharbor.telemetry.metrics.meter import Meter
from taskharbor.telemetry.metrics.totals import Totals
from tests.deploy.expressions import DEPLOY
from tests.telemetry.attempts import SECOND, Attempt, attempt, job, settle
from tools import promtool

MINUTES = 20
ALERTS = ("TaskHarborRetryRateHigh", "TaskHarborRetriesExhausted", "TaskHarborRetryDelayLong")

SUCCESS = attempt(took=SECOND // 10)
DEATH = attempt(AttemptStatus.FAILED, State.DEAD, reason=Reason.EXHAUSTED)


def retry(seconds: int) -> Attempt:
    return attempt(AttemptStatus.FAILED, State.READY, delay=seconds * SECOND)


# What is settled in each minute, and the alerts that fire in the end.
LOADS: dict[str, tuple[list[Attempt], set[str]]] = {
    "healthy": ([SUCCESS] * 95 + [retry(2)] * 5, set()),
    "retries at the threshold": ([SUCCESS] * 100 + [retry(2)] * 10, set()),
    "one job in five is retried": ([SUCCESS] * 80 + [retry(2)] * 20, {"TaskHarborRetryRateHigh"}),
    "many use up their retries": (
        [SUCCESS] * 80 + [retry(2)] * 15 + [DEATH] * 5,
        {"TaskHarborRetryRateHigh", "TaskHarborRetriesExhausted"},
    ),
    "retries wait for ten minutes": ([SUCCESS] * 95 + [retry(600)] * 5, {"TaskHarborRetryDelayLong"}),
}


def scraped(load: list[Attempt], renderer: Renderer, meter: Meter) -> Iterator[dict[str, float]]:
    for _ in range(MINUTES + 1):
        yield {
            f"{sample.name}{json.dumps(sample.labels)}": sample.value
            for family in text_string_to_metric_families(renderer.render()[1].decode())
            for sample in family.samples
        }
        meter.claimed([job() for _ in load], 0.01)
        settle(meter, *load, seconds=0.01)


def series_of(name: str) -> str:
    """Return a sample's name and labels as promtool reads them."""
    metric, _, labels = name.partition("{")
    pairs = json.loads("{" + labels) | {"job": "w", "instance": "a"}
    return metric + "{" + ", ".join(f"{label}={json.dumps(value)}" for label, value in pairs.items()) + "}"


@pytest.mark.parametrize("name", LOADS)
def test_alerts_on_retries_fire_with_the_load_that_they_are_for(name: str, tmp_path: Path):
    load, expected = LOADS[name]
    totals, meter = Totals(), Meter(Cells(), lambda task: True)
    totals.add(meter.cells)
    minutes = list(scraped(load, Renderer(totals.snapshot), meter))
    names = {sample for minute in minutes for sample in minute if "retr" in sample or "_total" in sample}
    series = [
        {
            "series": series_of(sample),
            "values": " ".join(str(minute[sample]) if sample in minute else "_" for minute in minutes),
        }
        for sample in sorted(names)
    ]
    fires = {"exp_labels": {"job": "w", "queue": "default", "task": "send"}}
    cases = [
        {"alertname": alert, "eval_time": f"{MINUTES}m", "exp_alerts": [fires] if alert in expected else []}
        for alert in ALERTS
    ]
    test = {"interval": "1m", "input_series": series, "alert_rule_test": cases}
    rules = tmp_path / "rules.yml"
    rules.write_text(without_texts((DEPLOY / "prometheus" / "alerts.yml").read_text()))
    file = tmp_path / "load.yml"
    file.write_text(json.dumps({"rule_files": [rules.name], "evaluation_interval": "1m", "tests": [test]}))
    run = promtool.run("test", "rules", file)
    assert run.returncode == 0, run.stdout


def without_texts(rules: str) -> str:
    """Return the rules without what only their own cases compare."""
    read = yaml.safe_load(rules)
    for group in read["groups"]:
        for rule in group["rules"]:
            del rule["annotations"], rule["labels"]
    return json.dumps(read)
