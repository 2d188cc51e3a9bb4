"""The text of a scrape: formats, names, prefix, and labels that cannot break out of it."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families

from taskharbor.drivers.contract.reading import StreamPartition, StreamPresence, WorkerRecord
from taskharbor.errors import ConfigurationError
from taskharbor.records import AttemptStatus, QueueRecord, Reason, State
from taskharbor.rules.autoscale import Load
from taskharbor.telemetry.metrics import catalogue
from taskharbor.telemetry.metrics.catalogue import Source
from taskharbor.telemetry.metrics.exposition import Renderer
from taskharbor.telemetry.metrics.store_gauges import StoreReading, gauges_of
from taskharbor.telemetry.metrics.totals import Snapshot
from tests.telemetry.attempts import NOW, SECOND, attempt, job, new_meter, read, settle
from tools import promtool

RETRY = attempt(AttemptStatus.FAILED, State.READY, delay=3 * SECOND)
DEATH = attempt(AttemptStatus.FAILED, State.DEAD, reason=Reason.EXHAUSTED)
MEMBER = WorkerRecord(
    "member",
    "host",
    1,
    8,
    NOW,
    ("mail",),
    stream=StreamPresence("tasks", "shop", (StreamPartition(3, 40, 50, 52),)),
)
READING = StoreReading(
    NOW,
    dict.fromkeys(State, 0) | {State.DEAD: 4, State.WAITING: 2},
    [QueueRecord("default", True, 3, 2, 1, NOW - 90 * SECOND)],
    [MEMBER],
    {"default": Load(running=1)},
)


def scrape(*attempts, prefix: str = "taskharbor_", accept: str = "") -> str:
    meter = new_meter()
    meter.claimed([each[0] for each in attempts], 0.02)
    settle(meter, *attempts, seconds=0.03)
    renderer = Renderer(lambda: read(meter), lambda: gauges_of(READING), prefix=prefix)
    return renderer.render(accept)[1].decode()


def samples(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


HOSTILE = [
    'a"b',
    "a\\b",
    "a\nb 1\nfake_total 9",
    "a\x00b",
    "{}=,",
    "grüße 🚢",
    "x" * 5_000,
    "ü" * 500,
    "\ud800",
    " ",
]

LABELS = (("queue", "default"), ("task", "send"))


def test_the_seeds_metrics_have_their_names_with_the_prefix_and_without():
    for prefix in ("taskharbor_", ""):
        found = samples(scrape(RETRY, RETRY, DEATH, prefix=prefix))
        assert found[f"{prefix}retries_total", LABELS] == 2
        assert found[f"{prefix}retry_exhausted_total", LABELS] == 1
        assert found[f"{prefix}retry_latency_seconds_count", LABELS] == 2
        assert found[f"{prefix}retry_latency_seconds_sum", LABELS] == 6.0


def test_buckets_are_cumulative_and_in_seconds():
    found = samples(scrape(RETRY, attempt(took=2 * SECOND), attempt(took=3 * SECOND)))

    def within(bound: str) -> float:
        return found["taskharbor_job_duration_seconds_bucket", (("le", bound), *LABELS)]

    assert [within("0.001"), within("1.0"), within("2.5"), within("5.0"), within("+Inf")] == [1, 1, 2, 3, 3]


def test_partitions_of_streams_have_a_series_each_up_to_a_limit(monkeypatch: pytest.MonkeyPatch):
    labels = (("group", "shop"), ("partition", "3"), ("topic", "tasks"))
    found = samples(scrape(RETRY))
    assert found["taskharbor_stream_lag", labels] == 12
    assert found["taskharbor_stream_committed_offset", labels] == 40
    monkeypatch.setattr("taskharbor.telemetry.metrics.store_gauges.PARTITIONS", 0)
    assert (
        samples(scrape(RETRY))["taskharbor_stream_lag", (labels[0], ("partition", "_other"), labels[2])] == 12
    )


def test_every_metric_of_the_catalogue_is_exported_and_no_other():
    found = {name for name, _ in samples(scrape(RETRY, attempt()))}
    families = {re.sub(r"_(bucket|count|sum)$", "", name) for name in found}
    assert families == {f"taskharbor_{metric.exported}" for metric in catalogue.METRICS}


def test_the_gauges_of_the_store_are_shown():
    found = samples(scrape(attempt()))
    queue = ("queue", "default")
    assert found["taskharbor_queue_jobs", (queue, ("state", "ready"))] == 3
    assert found["taskharbor_queue_oldest_ready_seconds", (queue,)] == 90
    assert found["taskharbor_queue_paused", (queue,)] == 1
    assert found["taskharbor_queue_workers", (queue,)] == 0
    assert found["taskharbor_dead_jobs", ()] == 4
    assert found["taskharbor_waiting_jobs", ()] == 2


def test_a_scraper_gets_openmetrics_if_it_asks_for_it():
    assert scrape(attempt()).endswith("\n")
    text = scrape(attempt(), accept="application/openmetrics-text; version=1.0.0")
    assert text.endswith("# EOF\n")
    assert 'taskharbor_jobs_succeeded_total{queue="default",task="send"} 1' in text


PLAIN, OPENMETRICS = "", "application/openmetrics-text; version=1.0.0"
PARSERS: dict[str, Any] = {PLAIN: text_string_to_metric_families, OPENMETRICS: openmetrics_families}
ENCODERS: dict[str, Any] = {PLAIN: generate_latest, OPENMETRICS: generate_openmetrics}


@pytest.mark.parametrize("prefix", ["taskharbor_", ""])
@pytest.mark.parametrize("accept", [PLAIN, OPENMETRICS], ids=["plain", "openmetrics"])
def test_the_text_says_what_prometheus_client_would_write_for_the_same_counts(accept: str, prefix: str):
    """Every family, in its order, with its type, its help, its samples and their labels."""
    meter = new_meter()
    settle(meter, RETRY, DEATH, *(attempt(of=job(name, name[::-1])) for name in HOSTILE))
    settle(meter, attempt(of=job("50 %d %(x)s", "%"), took=10**17))
    for number in range(250):
        of = job(f"task-{number}", f"queue-{number % 3}")
        meter.claimed([of], 0.02)
        settle(meter, attempt(of=of, took=number * number * 1_000), seconds=0.001 * number)
    meter.extension_refused()
    renderer = Renderer(lambda: read(meter), lambda: gauges_of(READING), prefix=prefix)
    registry = CollectorRegistry()
    registry.register(renderer)
    written = list(PARSERS[accept](renderer.render(accept)[1].decode()))
    expected = list(PARSERS[accept](ENCODERS[accept](registry).decode()))
    assert [(each.name, each.type, each.documentation) for each in written] == [
        (each.name, each.type, each.documentation) for each in expected
    ]
    assert written == expected
    assert sum(len(family.samples) for family in written) > 200 * 50


def test_an_empty_scrape_is_what_prometheus_client_would_write():
    renderer = Renderer(lambda: read(new_meter()), lambda: gauges_of(None))
    registry = CollectorRegistry()
    registry.register(renderer)
    for accept in (PLAIN, OPENMETRICS):
        written = PARSERS[accept](renderer.render(accept)[1].decode())
        assert list(written) == list(PARSERS[accept](ENCODERS[accept](registry).decode()))


def test_no_meaning_of_a_metric_needs_to_be_escaped():
    assert [metric.name for metric in catalogue.METRICS if {*metric.meaning} & {*'"\\\n'}] == []


def test_a_series_without_an_observation_has_no_histogram():
    found = {name for name, _ in samples(scrape(attempt()))}
    assert "taskharbor_retries_total" in found
    assert "taskharbor_retry_latency_seconds_count" not in found


def test_hostile_names_stay_inside_their_labels_and_short():
    attempts = [attempt(of=job(name, name[::-1])) for name in HOSTILE]
    text = scrape(*attempts)
    found = samples(text)
    assert {name for name, _ in found if not name.startswith("taskharbor_")} == set()
    labels = {labels for name, labels in found if name == "taskharbor_jobs_started_total"}
    assert len(labels) == len(HOSTILE)
    assert all(len(value.encode()) <= 120 and value.isprintable() for pair in labels for _, value in pair)
    assert found["taskharbor_jobs_started_total", (("queue", 'b"a'), ("task", 'a"b'))] == 1
    assert promtool.lint(text) == ""


def test_no_value_of_a_job_gets_into_a_scrape():
    """Of a job, only the names of its queue and of its declared task are shown."""
    canary = "canary-5e2f"
    claimed = job()
    secret = type(claimed)(
        f"id-{canary}",
        "send",
        f'{{"token": "{canary}"}}',
        "default",
        0,
        1,
        0,
        1,
        NOW,
        NOW,
        options=f'"{canary}"',
    )
    ends = [
        attempt(of=secret, result=canary, detail=canary, error=canary, traceback=canary),
        attempt(
            AttemptStatus.FAILED, State.DEAD, of=secret, reason=Reason.EXHAUSTED, error=canary, worker=canary
        ),
        attempt(AttemptStatus.LOST, State.READY, of=secret, error=canary, worker=canary),
    ]
    assert canary not in scrape(*ends)
    assert "taskharbor_jobs_lost_total" in scrape(*ends)


def test_the_linter_of_prometheus_has_nothing_to_say():
    assert promtool.lint(scrape(RETRY, DEATH, attempt())) == ""


@pytest.mark.parametrize("prefix", ["9lives_", "a-b", "ü_", "a b", "a{"])
def test_a_prefix_that_no_metric_may_have_is_refused(prefix: str):
    with pytest.raises(
        ConfigurationError, match="cannot begin the name of a metric; use letters, digits and _"
    ):
        Renderer(prefix=prefix)


def test_the_package_does_not_need_the_extra_until_metrics_are_shown():
    script = (
        "import sys; sys.modules['prometheus_client'] = None\n"
        "import taskharbor, taskharbor.telemetry.metrics.meter, taskharbor.telemetry.metrics.totals\n"
        "import taskharbor.telemetry.metrics.endpoint, taskharbor.telemetry.metrics.store_gauges\n"
        "from taskharbor.errors import ConfigurationError\n"
        "try:\n"
        "    import taskharbor.telemetry.metrics.exposition\n"
        "except ConfigurationError as error:\n"
        "    print(error)\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert run.stderr == ""
    assert (
        run.stdout
        == "metrics need the extra: pip install 'taskharbor[metrics]' (prometheus_client is missing)\n"
    )


def test_counters_end_in_total_and_times_in_seconds():
    for metric in catalogue.METRICS:
        assert metric.exported.endswith("_total") == (metric.kind == "counter")
        assert metric.in_micros == (metric.kind == "histogram" and metric.name.endswith("_seconds"))
        assert (metric.source is Source.JOBS) == (metric.labels == ("queue", "task"))


def test_labels_that_a_crash_has_garbled_break_no_line():
    """Labels are read from memory that a handler may have written to."""
    meter = new_meter()
    settle(meter, attempt())
    pair = ("a\0b", 'c"\n\\%d')
    snapshot = read(meter)
    garbled = Snapshot(snapshot.process, {pair: snapshot.jobs["default", "send"]})
    found = samples(Renderer(lambda: garbled).render()[1].decode())
    labels = (("queue", "a\ufffdb"), ("task", 'c"\n\\%d'))
    assert found["taskharbor_jobs_succeeded_total", labels] == 1
    assert {shown for name, shown in found if name == "taskharbor_job_wait_seconds_count"} == {labels}
