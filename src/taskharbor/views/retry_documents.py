"""The documents of retries: the policy of a job, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from msgspec import UNSET, Meta, UnsetType, field

from taskharbor.client.retry_metrics import RetryMetrics
from taskharbor.rules.retry import MAX_ATTEMPTS
from taskharbor.views.documents import Delay, Document

PATTERNS_MAX = 100
Patterns = Annotated[
    list[Annotated[str, Meta(min_length=1)]],
    Meta(max_length=PATTERNS_MAX, description="Texts that the error's text or type name contains."),
]
TypeNames = Annotated[
    list[
        Annotated[
            str, Meta(pattern=r"^[^:\x00-\x20]+:[^:\x00-\x20]+(?!\n)$", examples=["builtins:PermissionError"])
        ]
    ],
    Meta(max_length=PATTERNS_MAX, description="Types of errors, or bases of them, as module:name."),
]


class RetryDocument(Document, forbid_unknown_fields=True):
    """How often a failed job is retried, after what delay, and after which errors.

    It has the same form in requests and in responses. A field that is left out is as in the default policy.
    """

    max_attempts: Annotated[int, Meta(ge=0, le=MAX_ATTEMPTS, description="0: no limit of its own.")] = 25
    initial: Delay = 0.2
    maximum: Delay | UnsetType = UNSET
    multiplier: Annotated[float, Meta(ge=1)] = 2.0
    jitter: (
        Annotated[float, Meta(ge=0, le=1, description="A fraction of the delay.")] | Literal["full"] | None
    ) = 0.2
    retry_on: Patterns = field(default_factory=list)
    never_retry_on: Patterns = field(default_factory=list)
    retry_on_types: TypeNames = field(default_factory=list)
    never_retry_on_types: TypeNames = field(default_factory=list)


Retry = Annotated[
    RetryDocument | Literal["none"] | None,
    Meta(description="A policy; `none` for no retries at all; null if the task's declaration decides."),
]


def retry_of(stored: Mapping[str, Any] | None | UnsetType) -> RetryDocument | Literal["none"] | None:
    """Return the document of a stored policy: None if the job has none, "none" if the job refuses retries."""
    if isinstance(stored, UnsetType):
        return None
    if stored is None:
        return "none"
    known = {name: stored[name] for name in RetryDocument.__struct_fields__ if name in stored}
    return RetryDocument(**{"jitter": None} | known)


class RetryMetricsDocument(Document):
    """How the current run of a job was retried."""

    task: str
    total_attempts: Annotated[int, Meta(description="Attempts that failed or succeeded.")]
    successful_at: Annotated[int, Meta(description="Which of them succeeded, from 1.")] | None
    last_error: str | None
    backoff_seconds: Annotated[float, Meta(description="The delays granted before retries, in all.")]
    summary: Annotated[str, Meta(description="All of it as one line, for a log.")]

    @classmethod
    def of(cls, source: RetryMetrics, **others: Any) -> Self:
        return super().of(source, summary=str(source), **others)
