"""Sizes: how many bytes of its callers' texts a verb carries at once.

A batch is bounded in bytes as well as in number. A thousand small jobs make a good batch; a thousand large ones are
more than a store, a network or a process's memory should carry in one piece.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from taskharbor.drivers.contract.enqueueing import AlikeJobs
from taskharbor.drivers.contract.leasing import Claimed
from taskharbor.drivers.contract.settling import PlainSuccesses, Transition
from taskharbor.records import NewJob

T = TypeVar("T")

# Of what ended attempts leave behind (results, errors, children) that a worker settles at once.
SETTLE_BYTES = 4 * 1_048_576


def text_size(text: str | None) -> int:
    """The bytes of a text in UTF-8."""
    if text is None:
        return 0
    return len(text) if text.isascii() else len(text.encode(errors="replace"))


def claimed_size(job: Claimed) -> int:
    """The bytes of a claimed job that `ClaimRequest.bytes_limit` counts."""
    size = text_size(job.payload)
    if job.options is not None:
        size += text_size(job.options)
    return size if job.meta is None else size + text_size(job.meta)


def job_size(job: NewJob) -> int:
    """The bytes of a new job that may be many. (Its names, options and meta are short.)"""
    return text_size(job.payload)


def jobs_size(jobs: Sequence[NewJob]) -> int:
    """The same of many new jobs."""
    return sum(map(text_size, jobs.payloads)) if isinstance(jobs, AlikeJobs) else sum(map(job_size, jobs))


def transition_size(t: Transition) -> int:
    """The bytes of a transition that may be many."""
    size = 0 if t.result is None else text_size(t.result)
    if t.error is None and not t.inserts and t.dead_letter is None:
        return size  # as nearly every one
    size += text_size(t.error) + text_size(t.traceback) + sum(map(job_size, t.inserts))
    return size if t.dead_letter is None else size + job_size(t.dead_letter)


def pieces(
    batch: Sequence[T], size_of: Callable[[T], int], limit: int, most: int | None = None
) -> Iterator[Sequence[T]]:
    """Cut a batch, in its order, into pieces of at most `limit` bytes, and at most `most` members.

    A member that is larger by itself is a piece of its own.
    """
    start = size = 0
    for index, member in enumerate(batch):
        more = size_of(member)
        if index > start and (size + more > limit or index - start == most):
            yield batch[start:index]
            start, size = index, 0
        size += more
    if start < len(batch):
        yield batch[start:]


def settle_pieces(transitions: Sequence[Transition], limit: int) -> Iterator[Sequence[Transition]]:
    """Cut a settle into pieces of at most `limit` bytes; most need no cut, and then no look at each transition."""
    if isinstance(transitions, PlainSuccesses) and (
        transitions.results is None or sum(map(text_size, transitions.results)) <= limit
    ):
        if transitions:
            yield transitions
        return
    yield from pieces(transitions, transition_size, limit)
