"""Idempotency: one job for each id, and one for each (queue, idempotency key)."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

from msgspec import Struct

from taskharbor.records import NewJob


class ResolvedBatch(Struct):
    """For each job of an enqueue, the job that stands for it: itself, or one that exists."""

    fresh: list[NewJob]
    answers: list[tuple[str, bool]]  # (id, existed)
    stands_for: dict[str, str]  # the id given → the id of the job that a dependency on it means


def resolve_batch(
    jobs: Sequence[NewJob], known_ids: Container[str], known_keys: Mapping[tuple[str, str], str]
) -> ResolvedBatch:
    """Find the jobs of a batch that exist: in the store, whose ids and keys are given, or earlier in the batch."""
    batch = ResolvedBatch([], [], {})
    new_keys: dict[tuple[str, str], str] = {}
    new_ids: set[str] = set()
    for job in jobs:
        key = None if job.idempotency_key is None else (job.queue, job.idempotency_key)
        if job.id in known_ids or job.id in new_ids:
            existing: str | None = job.id
        else:
            existing = None if key is None else known_keys.get(key) or new_keys.get(key)
        if existing is None:
            batch.fresh.append(job)
            batch.stands_for[job.id] = job.id
            new_ids.add(job.id)
            if key is not None:
                new_keys[key] = job.id
        else:
            batch.stands_for.setdefault(job.id, existing)
        batch.answers.append((existing or job.id, existing is not None))
    return batch
