"""Every metric, once: its name, type, labels and meaning."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from taskharbor.telemetry.metrics import buckets

PREFIX = "taskharbor_"  # of exported names, unless an option says otherwise


class Source(StrEnum):
    JOBS = "jobs"  # counted by workers, for each queue and task
    PROCESS = "process"  # counted by workers, without labels
    STORE = "store"  # read from the store


class Metric(Struct, frozen=True):
    name: str  # without the prefix, and for a counter without `_total`
    kind: str  # counter, histogram or gauge
    source: Source
    meaning: str
    labels: tuple[str, ...] = ()
    bounds: tuple[int, ...] = ()  # of a histogram, as its cells count: microseconds, or jobs
    in_micros: bool = False  # it counts microseconds, and is exported in seconds

    @property
    def exported(self) -> str:
        """The name that Prometheus shows, without the prefix."""
        return f"{self.name}_total" if self.kind == "counter" else self.name

    @property
    def words(self) -> int:
        """How many cells it takes: of a histogram one for each bucket, one for all above, and the sum."""
        return len(self.bounds) + 2 if self.kind == "histogram" else 1


def _job_counter(name: str, meaning: str) -> Metric:
    return Metric(name, "counter", Source.JOBS, meaning, ("queue", "task"))


def _job_times(name: str, meaning: str) -> Metric:
    labels = ("queue", "task")
    return Metric(name, "histogram", Source.JOBS, meaning, labels, buckets.TIMES, in_micros=True)


def _times(name: str, meaning: str) -> Metric:
    return Metric(name, "histogram", Source.PROCESS, meaning, (), buckets.TIMES, in_micros=True)


def _batches(name: str, meaning: str) -> Metric:
    return Metric(name, "histogram", Source.PROCESS, meaning, (), buckets.BATCHES)


def _counter(name: str, meaning: str) -> Metric:
    return Metric(name, "counter", Source.PROCESS, meaning)


def _gauge(name: str, meaning: str, *labels: str) -> Metric:
    return Metric(name, "gauge", Source.STORE, meaning, labels)


_STREAM = ("topic", "group", "partition")

ENQUEUED = _job_counter(
    "jobs_enqueued", "Jobs claimed for the first time: each job counts once, however it was enqueued."
)
STARTED = _job_counter("jobs_started", "Attempts whose handler began, counted when the attempt is settled.")
SUCCEEDED = _job_counter("jobs_succeeded", "Attempts that succeeded, and so ended their job or occurrence.")
FAILED = _job_counter(
    "jobs_failed", "Attempts that failed or timed out, whether or not the job is tried again."
)
RETRIED = _job_counter("retries", "Failed attempts after which the job is tried again.")
EXHAUSTED = _job_counter(
    "retry_exhausted", "Jobs, and occurrences of schedules, that died because no retry was left."
)
DEAD = _job_counter("jobs_dead", "Jobs, and occurrences of schedules, that died, for any reason.")
LOST = _job_counter("jobs_lost", "Attempts that ended with their worker, or whose lease expired.")
CANCELLED = _job_counter(
    "jobs_cancelled",
    "Jobs, and occurrences of schedules, that a worker ended as cancelled: on request, expired, or with a dependency.",
)
WAIT = _job_times(
    "job_wait_seconds", "From the time a job was due to the begin of its handler, for each attempt."
)
DURATION = _job_times(
    "job_duration_seconds",
    "From the begin of a handler to the end of its attempt in the store; not of lost attempts.",
)
RETRY_LATENCY = _job_times(
    "retry_latency_seconds", "The delay granted before a retry, observed when the retry is settled."
)

CLAIM_DURATION = _times("claim_duration_seconds", "How long the store took to answer a claim.")
SETTLE_DURATION = _times("settle_duration_seconds", "How long the store took to answer a settle.")
CLAIM_BATCH = _batches("claim_batch_jobs", "Jobs in the answer to a claim.")
SETTLE_BATCH = _batches("settle_batch_jobs", "Attempts in a settle.")
EXTENSIONS_REFUSED = _counter(
    "extensions_refused", "Leases that the store refused to extend: their jobs are lost."
)
SETTLES_REFUSED = _counter(
    "settles_refused", "Attempts that the store refused to settle, because their lease was lost."
)
LOOP_LAG = _times(
    "event_loop_lag_seconds", "How late the worker's event loop ran a timer, looked at every second."
)

STREAM_TAKEN = _counter("stream_messages_taken", "Messages of a topic that a stream worker has taken.")
STREAM_HANDED_OVER = _counter(
    "stream_messages_handed_over", "Messages of a topic that became jobs of the store, dead ones included."
)
STREAM_DEAD = _counter(
    "stream_messages_dead",
    "Messages of a topic that were dead at once; those that die later count in `jobs_dead`.",
)

QUEUE_JOBS = _gauge(
    "queue_jobs", "Jobs of a queue by state: `ready`, `scheduled` or `running`.", "queue", "state"
)
OLDEST_READY = _gauge(
    "queue_oldest_ready_seconds", "How long the oldest ready job has been due; 0 without one.", "queue"
)
QUEUE_PAUSED = _gauge("queue_paused", "1 while the queue is paused, else 0.", "queue")
QUEUE_WORKERS = _gauge("queue_workers", "Workers that serve the queue.", "queue")
QUEUE_SLOTS = _gauge("queue_slots", "Slots of the workers that serve the queue.", "queue")
AUTOSCALE_SLOTS = _gauge(
    "autoscale_slots",
    "Slots that keep the queue's oldest ready job younger than 30 s, from the roll-ups; not exact.",
    "queue",
)
STREAM_LAG = _gauge("stream_lag", "Messages that the group has not committed.", *_STREAM)
STREAM_COMMITTED = _gauge("stream_committed_offset", "The offset that the group has committed.", *_STREAM)
STREAM_INCOMPLETE = _gauge("stream_incomplete", "Messages that were read and are not finished.", *_STREAM)
STREAM_AHEAD = _gauge(
    "stream_finished_ahead", "Messages that are finished beyond the committed offset.", *_STREAM
)
STREAM_PAUSED = _gauge("stream_paused", "1 while a worker reads no more of the partition, else 0.", *_STREAM)
WAITING_JOBS = _gauge("waiting_jobs", "Jobs of all queues that wait for other jobs.")
DEAD_JOBS = _gauge("dead_jobs", "Jobs of all queues in the dead-letter queue.")
WORKERS = _gauge("workers", "Workers that are running.")
SLOTS = _gauge("worker_slots", "Slots of all workers: how many jobs can run at once.")
STORE_UP = _gauge(
    "store_up", "1 if the store could be read for this scrape, else 0; then the other gauges are missing."
)

METRICS: tuple[Metric, ...] = (
    ENQUEUED, STARTED, SUCCEEDED, FAILED, RETRIED, EXHAUSTED, DEAD, LOST, CANCELLED, WAIT, DURATION, RETRY_LATENCY,
    CLAIM_DURATION, SETTLE_DURATION, CLAIM_BATCH, SETTLE_BATCH, EXTENSIONS_REFUSED, SETTLES_REFUSED, LOOP_LAG,
    STREAM_TAKEN, STREAM_HANDED_OVER, STREAM_DEAD,
    QUEUE_JOBS, OLDEST_READY, QUEUE_PAUSED, QUEUE_WORKERS, QUEUE_SLOTS, AUTOSCALE_SLOTS,
    STREAM_LAG, STREAM_COMMITTED, STREAM_INCOMPLETE, STREAM_AHEAD, STREAM_PAUSED, WAITING_JOBS, DEAD_JOBS,
    WORKERS, SLOTS, STORE_UP,
)  # fmt: skip


def of(source: Source) -> tuple[Metric, ...]:
    """Return the metrics of one source, in their order."""
    return tuple(metric for metric in METRICS if metric.source is source)


def offsets(metrics: tuple[Metric, ...]) -> dict[str, int]:
    """Return where each metric's cells begin, if the cells of all of them follow one another."""
    found: dict[str, int] = {}
    end = 0
    for metric in metrics:
        found[metric.name] = end
        end += metric.words
    return found


def words(metrics: tuple[Metric, ...]) -> int:
    """Return how many cells all of them take."""
    return sum(metric.words for metric in metrics)
