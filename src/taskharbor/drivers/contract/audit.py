"""The audit: who did what and when, as a caller hands it to the store and as the store returns it."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from msgspec import Struct

ACTIONS_KEPT = 10_000  # the newest ones
TRIM_EVERY = 100  # actions between two looks at what is too old
TRIMMED_AT_ONCE = 1_000


class Verb(StrEnum):
    """What an action did, and to what kind of thing. The bulk form of a verb is the same verb with a filter."""

    CANCEL = "job.cancel"
    DELETE = "job.delete"
    REQUEUE = "job.requeue"
    DISCARD = "job.discard"
    RUN_NOW = "job.run-now"
    UPDATE = "job.update"
    DEAD_LETTER = "job.dead-letter"
    CANCEL_WORKFLOW = "workflow.cancel"
    RETRY_WORKFLOW = "workflow.retry"
    PAUSE_QUEUE = "queue.pause"
    RESUME_QUEUE = "queue.resume"
    UPDATE_SCHEDULE = "schedule.update"
    PAUSE_SCHEDULE = "schedule.pause"
    RESUME_SCHEDULE = "schedule.resume"
    RUN_SCHEDULE = "schedule.run-now"
    DELETE_SCHEDULE = "schedule.delete"
    CREATE_TOKEN = "token.create"
    REVOKE_TOKEN = "token.revoke"
    HOLD = "task.hold"
    RELEASE = "task.release"


VerbName = Literal[
    "job.cancel",
    "job.delete",
    "job.requeue",
    "job.discard",
    "job.run-now",
    "job.update",
    "job.dead-letter",
    "workflow.cancel",
    "workflow.retry",
    "queue.pause",
    "queue.resume",
    "schedule.update",
    "schedule.pause",
    "schedule.resume",
    "schedule.run-now",
    "schedule.delete",
    "token.create",
    "token.revoke",
    "task.hold",
    "task.release",
]
OF_TOKENS = "token."  # verbs that begin so are shown to admins only


class Action(Struct, frozen=True):
    """An action that is about to be taken. A store keeps it together with what it changes, or not at all.

    Calls with the same id are parts of one action: the store keeps one row and adds up what they changed. None of the
    texts holds a payload, a result or a secret.
    """

    id: str  # a new UUID, made by the caller
    verb: str  # see `Verb`
    actor: str | None = None  # who acts; None: not known
    job_id: str | None = None  # if it concerns one job
    subject: str | None = (
        None  # the name or id of the queue, schedule, workflow, token or task that it concerns
    )
    filter: str | None = None  # JSON: what selected the jobs of a bulk action
    details: str | None = None  # JSON: what was asked for; of an update, the fields that changed


class ActionRecord(Struct, frozen=True):
    """An action as the store returns it."""

    id: str
    at: int  # when its first change was made, in the store's time
    verb: str
    actor: str | None = None
    job_id: str | None = None
    subject: str | None = None
    filter: str | None = None
    details: str | None = None
    count: int = 0  # jobs that it changed, or asked to end; 0 for what is not done to jobs


class ActionFilter(Struct, frozen=True):
    """Selects actions; None matches any."""

    actor: str | None = None
    verb: str | None = None
    job_id: str | None = None  # those that concern this one job, and the latest one that changed it
    after: int | None = None  # at this instant or later
    before: int | None = None  # earlier than this instant
    tokens: bool = True  # False leaves out what was done to tokens


class ActionPage(Struct, frozen=True):
    actions: list[ActionRecord]
    next_cursor: str | None


class PauseRecord(Struct, frozen=True):
    """A paused queue: who paused it, if that is known, and since when."""

    queue: str
    by: str | None
    since: int
