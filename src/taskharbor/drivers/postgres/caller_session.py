"""Enqueue and read inside a caller's own transaction: its settings stay, and its errors are its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, cast

import msgspec
from msgspec import Struct

from taskharbor.drivers.base import Enqueued, WorkflowEnqueued, job_size
from taskharbor.drivers.callers import PostgresCaller
from taskharbor.drivers.postgres import enqueue, places, reads, workflows
from taskharbor.drivers.postgres.caller_texts import decoded, encoded, instant, rewritten
from taskharbor.drivers.postgres.connections import ALONE_BYTES, Session
from taskharbor.drivers.postgres.explain import state_of
from taskharbor.errors import ConfigurationError, SchemaError, StoreError
from taskharbor.records import AttemptRecord, JobRecord, NewJob, NewWorkflow, WorkflowRecord, encode_options

# An unknown table, schema or function.
_MISSING = ("42P01", "3F000", "42883")
_FORBIDDEN = "42501"

_encode = msgspec.json.Encoder().encode
_decode_rows = msgspec.json.Decoder(list[dict[str, Any]]).decode


class _Stored(Struct):
    now_at: str
    existing: list[str | None] | None  # for each job the one that exists already


_decode_stored = msgspec.json.Decoder(_Stored).decode


def _are_large(jobs: Sequence[NewJob]) -> bool:
    return len(jobs) > 1 and sum(map(job_size, jobs)) > ALONE_BYTES


class CallerSession(Session):
    """What the driver's own sessions offer, as far as enqueueing takes it."""

    __slots__ = ("_notify", "_schema", "caller", "same_database")

    def __init__(
        self,
        caller: PostgresCaller,
        sql: dict[str, str],
        schema: str,
        *,
        notify: bool,
        same_database: bool = False,
    ) -> None:
        super().__init__(cast(Any, None), sql, None)
        self.caller = caller
        self._schema = schema
        self._notify = notify
        self.same_database = same_database

    # -- enqueueing --

    async def enqueue(self, jobs: Sequence[NewJob], identity: str | None, now: int | None) -> list[Enqueued]:
        """Store the jobs in the caller's transaction, if that is in the database with this identity; None: it is."""
        self.given_now = now
        await self.caller.ensure_transaction()
        if any(job.depends_on or job.due_at is not None for job in jobs) or _are_large(jobs):
            return await self._enqueue_by_statements(jobs, identity)
        answers: dict[int, Enqueued] = {}
        for _ in range(enqueue.RACES_MAX):
            left = [position for position in range(len(jobs)) if position not in answers]
            if not left:
                return [answers[position] for position in range(len(jobs))]
            answers.update(await self._enqueue_each(jobs, left, identity))
        raise enqueue.outrun()

    async def _enqueue_by_statements(self, jobs: Sequence[NewJob], identity: str | None) -> list[Enqueued]:
        """By the driver's own statements. Rare: jobs that others depend on must be locked, and one text has a limit."""
        async with self._all_or_nothing(identity):
            answers = await enqueue.enqueue(self, jobs)
            await self._announce()
        return answers

    async def enqueue_workflow(
        self, workflow: NewWorkflow, jobs: Sequence[NewJob], identity: str | None, now: int | None
    ) -> WorkflowEnqueued:
        """Store it in the caller's transaction, by the driver's own statements: a few, however many members it has."""
        self.given_now = now
        await self.caller.ensure_transaction()
        async with self._all_or_nothing(identity):
            answer = await workflows.enqueue_workflow(self, workflow, jobs)
            if not answer.existed:
                await self._announce()
        return answer

    @asynccontextmanager
    async def _all_or_nothing(self, identity: str | None) -> AsyncIterator[None]:
        """A caller that goes on after an error, or after giving up, stores nothing of what these statements did."""
        if identity is not None and await self.value("identity") != identity:
            raise _another_database()
        savepoint = self.savepoint()
        await savepoint.start()
        try:
            yield
        except BaseException:
            # Where that is impossible, the transaction is lost, and all of it with it.
            with suppress(Exception):
                await savepoint.rollback()
            raise
        await savepoint.commit()

    async def _announce(self) -> None:
        if self._notify:
            await self.do("announce")

    async def _enqueue_each(
        self, jobs: Sequence[NewJob], positions: list[int], identity: str | None
    ) -> dict[int, Enqueued]:
        """An answer for each of them, except where the job that existed is gone before it was looked at."""
        stored = await self._store([jobs[position] for position in positions], identity)
        now = instant(stored.now_at)
        existing = stored.existing or [None] * len(positions)
        found = await places.find(self, [job_id for job_id in existing if job_id is not None])
        return {
            position: enqueue.fresh_answer(jobs[position], now)
            if job_id is None
            else enqueue.existing_answer(found[job_id])
            for position, job_id in zip(positions, existing, strict=True)
            if job_id is None or job_id in found
        }

    async def _store(self, jobs: Sequence[NewJob], identity: str | None) -> _Stored:
        given = _encode([_columns(job) for job in jobs]).decode()
        answer = await self._value("store", identity, given, self.given_now, _distinct(jobs), self._notify)
        if answer is None:
            raise _another_database()
        return _decode_stored(answer)

    async def get(self, ids: Sequence[str], now: int | None) -> list[JobRecord | None]:
        """What a caller's open transaction has written, only its own connection sees."""
        self.given_now = now
        return await reads.get(self, ids)

    async def history(self, job_id: str, limit: int) -> list[AttemptRecord]:
        return await reads.history(self, job_id, limit)

    async def get_workflows(self, ids: Sequence[str]) -> list[WorkflowRecord | None]:
        return await workflows.get(self, ids)

    # -- statements --

    async def rows(self, name: str, *arguments: Any) -> list[Any]:
        answer = await self._value(name, *arguments, wrapped=True)
        return [decoded(row) for row in _decode_rows(answer or "[]")]

    async def row(self, name: str, *arguments: Any) -> Any:
        rows = await self.rows(name, *arguments)
        return rows[0] if rows else None

    async def value(self, name: str, *arguments: Any) -> Any:
        row = await self.row(name, *arguments)
        return None if row is None else next(iter(row.values()))

    async def do(self, name: str, *arguments: Any) -> None:
        statement, texts = self._prepared(self.sql[name], arguments)
        with self._explaining():
            await self.caller.do(statement, texts)

    async def execute(self, statement: str) -> None:
        await self.caller.do(statement, ())

    def at(self, now: int) -> CallerSession:
        session = CallerSession(
            self.caller, self.sql, self._schema, notify=self._notify, same_database=self.same_database
        )
        session.given_now = now
        return session

    def savepoint(self) -> Any:
        return _Savepoint(self)

    async def _value(self, name: str, *arguments: Any, wrapped: bool = False) -> str | None:
        """The statement's one value, or its rows as one JSON text."""
        statement, texts = self._prepared(self.sql[name], arguments)
        if wrapped:
            statement = (
                f"WITH answer AS ({statement}) SELECT coalesce(json_agg(answer), '[]')::text FROM answer"
            )
        with self._explaining():
            return await self.caller.value(statement, texts)

    def _prepared(self, statement: str, arguments: Sequence[Any]) -> tuple[str, list[str | None]]:
        text, kinds = rewritten(statement, self.caller.placeholder)
        return text, [encoded(value, kinds[number]) for number, value in enumerate(arguments, 1)]

    @contextmanager
    def _explaining(self) -> Iterator[None]:
        """Our errors where we know more than the caller's library says; any other is the caller's to deal with."""
        try:
            yield
        except Exception as error:
            state = state_of(error)
            if state in _MISSING:
                raise SchemaError(
                    f"the connection given to transaction() is to a database without TaskHarbor's tables in the schema "
                    f"{self._schema}; connect to the harbor's database, or run `taskharbor migrate`"
                ) from error
            if state == _FORBIDDEN:
                raise StoreError(
                    f"the user of the connection given to transaction() lacks a privilege in the schema "
                    f"{self._schema} ({str(error).splitlines()[0]}); grant it"
                ) from error
            raise


class _Savepoint:
    """As asyncpg's transactions."""

    def __init__(self, session: CallerSession) -> None:
        self._session = session

    async def start(self) -> None:
        await self._session.execute("SAVEPOINT taskharbor")

    async def commit(self) -> None:
        await self._session.execute("RELEASE SAVEPOINT taskharbor")

    async def rollback(self) -> None:
        await self._session.execute("ROLLBACK TO SAVEPOINT taskharbor")
        await self.commit()


def _columns(job: NewJob) -> dict[str, Any]:
    columns: dict[str, Any] = {
        "id": job.id,
        "queue": job.queue,
        "task": job.task,
        "payload": job.payload,
        "priority": job.priority,
        "run_at": encoded(job.run_at, "timestamptz"),
        "delay": job.delay,
        "expires_at": encoded(job.expires_at, "timestamptz"),
        "idempotency_key": job.idempotency_key,
        "delivery": job.delivery,
        "options": encode_options(job.options),
        "meta": job.meta,
        "tags": job.options.tags or None,
    }
    return {name: value for name, value in columns.items() if value is not None}


def _distinct(jobs: Sequence[NewJob]) -> bool:
    keys = [(job.queue, job.idempotency_key) for job in jobs if job.idempotency_key is not None]
    return len({job.id for job in jobs}) == len(jobs) and len(set(keys)) == len(keys)


def _another_database() -> ConfigurationError:
    return ConfigurationError(
        "the connection given to transaction() is to another database than the harbor's; both must be the same, "
        "or the harbor's workers would never see the job"
    )
