"""Questions to the brokers that are asked until they answer."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from confluent_kafka import KafkaException

from taskharbor.streams.complaints import Complaint

T = TypeVar("T")

AGAIN_SECONDS = 0.5  # before a question that was not answered is asked again


def until_answered(
    ask: Callable[[], T],
    what: str,
    topic: str,
    *,
    passes: Callable[[Any], bool],
    stopping: threading.Event,
) -> T | None:
    """Ask again after each error that `passes`; None if the worker stops meanwhile. `what` names {topic}."""
    complaint = Complaint(
        f"{what} cannot be read; the brokers are asked again: {{error}}",
        f"{what} could be read after {{seconds}} s",
    )
    while not stopping.is_set():
        try:
            answer = ask()
        except KafkaException as error:
            if not passes(error.args[0]):
                raise
            complaint.failed(error.args[0].str(), {"topic": topic})
        else:
            complaint.succeeded({"topic": topic})
            return answer
        stopping.wait(AGAIN_SECONDS)
    return None
