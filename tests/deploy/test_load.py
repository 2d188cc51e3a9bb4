"""A load on a worker makes the alerts on retries fire, and a healthy one leaves them quiet.

The worker drains a store in memory once in every minute of a clock that only the test moves, and is scraped each time.
The samples become the input of promtool.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]  # it says nothing of its types
from prometheus_client.parser import text_string_to_metric_families

from taskharbor import Context, Harbor, RetryPolicy, Worker
from taskharbor.clock import ManualClock
from tests.deploy.expressions import DEPLOY
from tools import promtool

MINUTES = 20
ALERTS = ("TaskHarborRetryRateHigh", "TaskHarborRetriesExhausted", "TaskHarborRetryDelayLong")

SUCCEEDS, FAILS_ONCE, FAILS_TWICE = 0, 1, 2  # failed attempts of a job; with two of them it is dead

# The jobs of each minute, the delay of retries in seconds, and the alerts that fire in the end.
LOADS: dict[str, tuple[list[int], float, set[str]]] = {
    "healthy": ([SUCCEEDS] * 95 + [FAILS_ONCE] * 5, 2, set()),
    "retries at the threshold": ([SUCCEEDS] * 90 + [FAILS_ONCE] * 10, 2, set()),
    "one job in five is retried": ([SUCCEEDS] * 80 + [FAILS_ONCE] * 20, 2, {"TaskHarborRetryRateHigh"}),
    "many use up their retries": (
        [SUCCEEDS] * 80 + [FAILS_ONCE] * 15 + [FAILS_TWICE] * 5,
        2,
        {"TaskHarborRetryRateHigh", "TaskHarborRetriesExhausted"},
    ),
    "retries wait for ten minutes": (
        [SUCCEEDS] * 95 + [FAILS_ONCE] * 5,
        600,
        {"TaskHarborRetryDelayLong"},
    ),
}


async def scraped(load: list[int], delay: float) -> list[dict[str, float]]:
    """Return the samples of each minute in which a worker has executed these jobs."""
    clock, minutes = ManualClock(), []
    async with Harbor("memory://", clock=clock) as harbor:

        @harbor.task(
            name="send", retry=RetryPolicy(max_attempts=2, initial=delay, maximum=delay, jitter=None)
        )
        async def send(ctx: Context, failures: int) -> None:
            if ctx.attempt <= failures:
                raise ConnectionError("no route")

        worker = Worker(harbor, metrics=True)
        for _ in range(MINUTES + 1):
            text = worker.collector().render()[1].decode()
            minutes.append(
                {
                    f"{sample.name}{json.dumps(sample.labels)}": sample.value
                    for family in text_string_to_metric_families(text)
                    for sample in family.samples
                }
            )
            await send.aenqueue_many([{"failures": failures} for failures in load])
            await worker.drain()
            clock.advance(60)
    return minutes


def series_of(name: str) -> str:
    """Return a sample's name and labels as promtool reads them."""
    metric, _, labels = name.partition("{")
    pairs = json.loads("{" + labels) | {"job": "w", "instance": "a"}
    return metric + "{" + ", ".join(f"{label}={json.dumps(value)}" for label, value in pairs.items()) + "}"


@pytest.mark.parametrize("name", LOADS)
async def test_alerts_on_retries_fire_with_the_load_that_they_are_for(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    caplog.set_level("CRITICAL", "taskharbor")
    load, delay, expected = LOADS[name]
    minutes = await scraped(load, delay)
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
