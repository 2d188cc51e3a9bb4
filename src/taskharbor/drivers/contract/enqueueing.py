"""What is enqueued, and what stands for it once it has been."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import overload
from uuid import UUID

from msgspec import Struct
from msgspec.structs import replace

from taskharbor.errors import ConfigurationError
from taskharbor.records import NewJob, State

Make = Callable[[int, int], tuple[list[str], list[str]]]


class AlikeJobs(Sequence[NewJob]):
    """Jobs that differ in their ids and payloads only, as two columns instead of an object for each.

    Every driver may take it as the sequence that it is. One that sends a batch after the other takes `columns`:
    `make(start, stop)` makes the ids and payloads from one position to another when they are first needed, so that a
    driver can have the next ones made while its server stores the last.
    """

    __slots__ = ("_count", "_ids", "_make", "_payloads", "shared")

    def __init__(self, shared: NewJob, count: int, make: Make) -> None:
        self.shared = shared  # its own id and payload mean nothing
        self._count = count
        self._make = make
        self._ids: list[str] = []
        self._payloads: list[str] = []

    @property
    def ids(self) -> list[str]:
        self.made_until(self._count)
        return self._ids

    @property
    def payloads(self) -> list[str]:
        self.made_until(self._count)
        return self._payloads

    def columns(self, start: int, stop: int) -> tuple[list[str], list[str]]:
        """The ids and the payloads from one position to another."""
        self.made_until(stop)
        return self._ids[start:stop], self._payloads[start:stop]

    def made_until(self, stop: int) -> None:
        """Make what is missing before this position."""
        begin = len(self._ids)
        if begin < stop:
            ids, payloads = self._make(begin, stop)
            self._ids += ids
            self._payloads += payloads

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[NewJob]:
        for job_id, payload in zip(self.ids, self.payloads, strict=True):
            yield replace(self.shared, id=job_id, payload=payload)

    @overload
    def __getitem__(self, index: int) -> NewJob: ...
    @overload
    def __getitem__(self, index: slice) -> list[NewJob]: ...
    def __getitem__(self, index: int | slice) -> NewJob | list[NewJob]:
        if isinstance(index, slice):
            return [self[position] for position in range(*index.indices(self._count))]
        return replace(self.shared, id=self.ids[index], payload=self.payloads[index])


def are_plain(jobs: Sequence[NewJob]) -> bool:
    """Whether a row and a place are all that each of them needs."""
    return jobs.shared.is_plain if isinstance(jobs, AlikeJobs) else all(job.is_plain for job in jobs)


def have_keys(jobs: Sequence[NewJob]) -> bool:
    """Whether one of them has an idempotency key."""
    if isinstance(jobs, AlikeJobs):
        return jobs.shared.idempotency_key is not None
    return any(job.idempotency_key is not None for job in jobs)


class Enqueued(Struct, frozen=True, gc=False):
    """The job that now stands for the one given: itself, or the one that existed."""

    id: str
    existed: bool
    state: State
    run_at: int
    enqueued_at: int


class WorkflowEnqueued(Struct, frozen=True):
    """The workflow that now stands for the one given: itself, or the one that existed."""

    id: str
    existed: bool
    enqueued_at: int


def member_id(workflow_id: str, index: int) -> str:
    """The id of a workflow's job: it follows the workflow's own, so that all of them are one range."""
    return str(UUID(int=UUID(workflow_id).int + 1 + index))


def unknown_dependency(job_id: str, member_id: str) -> ConfigurationError:
    return ConfigurationError(
        f"job {job_id} depends on {member_id}, which is neither stored nor enqueued with it; "
        "enqueue that one first, or both in one call"
    )


def member_exists(job_id: str) -> ConfigurationError:
    return ConfigurationError(
        f"a job has the id {job_id} already, which a job of this workflow would have; "
        "give the workflow another id, or leave it out: random ones never come so close to each other"
    )
