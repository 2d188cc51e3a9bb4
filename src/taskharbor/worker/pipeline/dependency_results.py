"""Reads the results that a job takes from its dependencies, when it begins, for many jobs at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from taskharbor.errors import PayloadTooLarge, Unrecoverable
from taskharbor.failure_tasks import with_argument
from taskharbor.own_tasks import OwnTask, own_task
from taskharbor.records import MemberResult, Takes
from taskharbor.worker.pipeline.execution import Execution
from taskharbor.worker.pipeline.patient_store import PatientStore

READ_AT_ONCE = 100
RESULTS_LIMIT = 32 * 1_048_576  # bytes of JSON that one job may take, and that one read may return


_Asked = tuple[str, asyncio.Future[list[MemberResult]]]  # a job's id, and what it waits for


class Results:
    """Reads the results for all jobs that begin at the same time together."""

    def __init__(self, store: PatientStore) -> None:
        self._store = store
        self._asked: list[_Asked] = []
        self._reading: set[OwnTask[None]] = set()

    async def payload(self, execution: Execution, takes: Takes) -> str:
        """Return the job's payload with the results it takes; raise if one is missing, or if they are too large."""
        members = await self._members(execution.claimed.id)
        sealing = execution.harbor.sealing
        opened = [
            member
            if member.result is None
            else replace(member, result=sealing.open(member.result, "a result"))
            for member in members
        ]
        payload = sealing.open(execution.claimed.payload)
        return with_argument(payload, takes.parameter, taken(takes, opened))

    async def _members(self, job_id: str) -> list[MemberResult]:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[list[MemberResult]] = loop.create_future()
        self._asked.append((job_id, answer))
        if len(self._asked) == 1:
            task = own_task(self._read())
            self._reading.add(task)
            task.add_done_callback(lambda _: self._reading.discard(task))
        return await answer

    async def _read(self) -> None:
        await asyncio.sleep(0)  # lets other jobs that begin in this round of the loop join the read
        asked, self._asked = self._asked, []
        for start in range(0, len(asked), READ_AT_ONCE):
            batch = asked[start : start + READ_AT_ONCE]
            try:
                while batch:
                    batch = await self._answer(batch)
            except Exception as error:  # noqa: BLE001 - not an outage, so each job that waits for this read fails with it
                for _, answer in batch:
                    if not answer.done():
                        answer.set_exception(error)
            except BaseException:  # the worker is being cancelled
                for _, answer in asked[start:]:
                    if not answer.done():
                        answer.cancel()
                raise

    async def _answer(self, batch: list[_Asked]) -> list[_Asked]:
        """Answer the jobs whose results fit into one read, at least the first; return those that did not fit."""
        found = await self._store.results([job_id for job_id, _ in batch], bytes_limit=RESULTS_LIMIT)
        left_out: list[_Asked] = []
        for asked, members in zip(batch, found, strict=True):
            if asked is not batch[0] and members and members[0].left_out:
                left_out.append(asked)
            elif not asked[1].done():
                asked[1].set_result(members)
        return left_out

    async def close(self) -> None:
        for task in list(self._reading):
            task.end()


def taken(takes: Takes, members: Sequence[MemberResult]) -> str:
    """Return the JSON of the results that a job takes."""
    missing = [member.job_id for member in members if not member.succeeded]
    if missing:
        raise Unrecoverable(
            f"the result of job {missing[0]}, which this job takes, was deleted"
            + (f", and {len(missing) - 1} more" if len(missing) > 1 else "")
        )
    if members and members[0].left_out:
        raise PayloadTooLarge(
            f"the results that this job takes exceed the limit of {RESULTS_LIMIT:,} bytes of JSON; "
            "let its dependencies store their data elsewhere and return the address"
        )
    texts = [member.result if member.result is not None else "null" for member in members]
    if takes.results is None:
        return f"[{','.join(texts)}]"
    return _nested(takes.results, texts)


def _nested(results: int | list[Any], texts: Sequence[str]) -> str:
    if isinstance(results, int):
        return texts[results]
    return f"[{','.join(_nested(each, texts) for each in results)}]"
