"""Aside: places of the order for jobs that only some workers take, or none for now.

A job stands aside under a label: that of its task, where the worker that met it does not know the task, or that of a
hold. In the order of its queue it has a lane of its own: the queue's name, a separator and the label. A claim looks
into the lanes that it names, in one order with the ordinary jobs, so no other claim pays for those that stand aside.
"""

from __future__ import annotations

from collections.abc import Iterable

from taskharbor.drivers.contract.reading import WorkerRecord

SEPARATOR = "\x1f\x1f"  # no name of a queue, task or tag that a client gives has a control character
_TASK = "task:"
_HOLD = "hold:"


def task_label(task: str) -> str:
    """The place of the jobs of a task, for the workers that know it."""
    return _TASK + task


def task_of(label: str) -> str | None:
    """The task that workers must know to look there; None for the label of a hold."""
    return label[len(_TASK) :] if label.startswith(_TASK) else None


def hold_label(kind: str, name: str) -> str:
    """The place of the jobs that a hold keeps back. Without that hold, every worker looks there."""
    return f"{_HOLD}{kind}:{name}"


def held_by(holds: Iterable[str], task: str, tags: Iterable[str]) -> str | None:
    """Return which of the holds, given by their labels, keeps such a job back: of its task, else of its first tag."""
    for label in (hold_label("task", task), *(hold_label("tag", tag) for tag in tags)):
        if label in holds:
            return label
    return None


# -- lanes -----------------------------------------------------------------------------------------


def lane_of(queue: str, label: str | None) -> str:
    """The name under which a job of this queue stands in the order."""
    return queue if label is None else f"{queue}{SEPARATOR}{label}"


def queue_of(lane: str) -> str:
    return lane.partition(SEPARATOR)[0]


def label_of(lane: str) -> str | None:
    _, separator, label = lane.partition(SEPARATOR)
    return label if separator else None


# -- who knows a task ------------------------------------------------------------------------------


def known_elsewhere(worker: WorkerRecord, task: str, queues: tuple[str, ...] | None, now: int) -> bool:
    """Whether this worker is alive, may know the task and serves all of these queues (None: every queue)."""
    if worker.expires_at <= now or (worker.tasks is not None and task not in worker.tasks):
        return False
    return worker.queues is None or (queues is not None and set(queues) <= set(worker.queues))
