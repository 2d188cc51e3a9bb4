"""Dead jobs that stand for messages: of those that cannot be read, and of those that the store cannot keep."""

from __future__ import annotations

import logging

from taskharbor.codec import encode_payload
from taskharbor.drivers.contract.handing_over import HandedOver
from taskharbor.records import AttemptRecord, AttemptStatus, NewJob, Reason, State
from taskharbor.streams.messages import Place, Unreadable
from taskharbor.telemetry.logs import log_line

logger = logging.getLogger("taskharbor.stream")

UNREADABLE_TASK = "taskharbor.stream:unreadable"


def unreadable_job(place: Place, read: Unreadable, queue: str, key: str, now: int) -> HandedOver:
    """The dead job of a message that no job can be made of."""
    about = {"sha256": read.sha256, "beginning": read.beginning}
    return _dead(place, UNREADABLE_TASK, why_unreadable(place, read), about, queue, key, now)


def why_unreadable(place: Place, read: Unreadable) -> str:
    return f"{place} cannot be read: {read.why}"


def unkeepable_job(place: Place, task: str, error: Exception, queue: str, key: str, now: int) -> HandedOver:
    """The dead job of a message that the store refuses. The message itself is still in the log."""
    return _dead(place, task, f"{place} cannot be kept by the store: {error}", {}, queue, key, now)


def _dead(
    place: Place, task: str, error: str, about: dict[str, str], queue: str, key: str, now: int
) -> HandedOver:
    report_dead(place, error)
    job = NewJob(place.job_id, task, encode_payload({**_at(place), **about}), queue, idempotency_key=key)
    attempt = AttemptRecord(job.id, 1, AttemptStatus.RELEASED, 0, "stream", None, now, error=error)
    return HandedOver(job, attempt, 0, State.DEAD, Reason.INVALID_PAYLOAD)


def report_dead(place: Place, error: str) -> None:
    log_line(
        logger,
        logging.ERROR,
        "message {topic}[{partition}]@{offset} is dead: {error}",
        {**_at(place), "error": error},
    )


def _at(place: Place) -> dict[str, str | int]:
    return {"topic": place.topic, "partition": place.partition, "offset": place.offset}
