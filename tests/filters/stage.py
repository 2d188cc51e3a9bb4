"""One store, and the three surfaces that operators reach it by: Python, the command line, REST."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import httpx
from click.testing import CliRunner

from taskharbor import Harbor, TaskHarborError, Worker
from taskharbor.cli import cli
from taskharbor.cli.session import Session
from taskharbor.clock import ManualClock
from taskharbor.drivers.base import Driver, SearchBudget
from taskharbor.drivers.memory import MemoryDriver
from taskharbor.drivers.sqlite import SQLiteDriver
from taskharbor.server.app import application
from tests.postgres import store as postgres
from tests.server.conftest import client_of

API = "/api/v1"
START = datetime(2026, 3, 1, 12, tzinfo=UTC)
DONE = {
    "requeue-all": "requeued",
    "discard-all": "discarded",
    "cancel-all": "cancelled",
    "delete-all": "deleted",
    "update-all": "changed",
}
OF_DEAD = ("requeue-all", "discard-all")
CHANGES = {"priority": 7}  # of update-all


class Refused(Exception):
    """The message of a refusal, whichever surface it came from; one line."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        assert len(message.splitlines()) == 1, message
        assert "Traceback" not in message


class Number(NamedTuple):
    """What a count or a bulk verb answers."""

    jobs: int
    more: bool = False


class Listed(NamedTuple):
    ids: list[str]
    cursor: str | None
    examined: int
    reached: datetime | None


class Stage:
    """A store by a clock that only moves when it is told to, which any number of harbors open."""

    def __init__(self, open_driver: Callable[[], Driver], clock: ManualClock) -> None:
        self._open_driver = open_driver
        self._runner = asyncio.Runner()
        self.clock = clock
        self.budget: SearchBudget | None = None
        self._events: list[tuple[str, str]] = []
        self.harbor = self.opened()

    def close(self) -> None:
        self.run(lambda harbor: harbor.aclose())
        self._runner.close()

    def opened(self) -> Harbor:
        driver = self._open_driver()
        if self.budget is not None:
            driver.search_budget = self.budget
        harbor = Harbor(driver=driver)
        harbor.on("dead")(lambda event: self._events.append(("dead", event.job_id)))
        harbor.on("cancelled")(lambda event: self._events.append(("cancelled", event.job_id)))
        harbor.task(name="t", max_attempts=1)(work)
        return harbor

    def search_only(self, jobs: int) -> None:
        """Let a search look at this many jobs."""
        self.budget = self.harbor.driver.search_budget = SearchBudget(jobs=jobs, seconds=3600)

    def run(self, act: Callable[[Harbor], Awaitable[Any]]) -> Any:
        async def whole() -> Any:
            return await act(self.harbor)

        return self._runner.run(whole())

    def drain(self) -> None:
        self.run(lambda harbor: Worker(harbor).drain())

    def enqueue(self, fails: str = "", task: str = "t", **options: Any) -> str:
        async def act(harbor: Harbor) -> str:
            job = await harbor.tasks[task].using(**options).aenqueue(fails=fails)
            return str(job.id)

        return str(self.run(act))

    def everything(self) -> Any:
        """All that the store holds, to prove that nothing changed."""

        async def act(harbor: Harbor) -> Any:
            jobs = await harbor.jobs.alist(limit=1000)
            return [job.record for job in jobs], [repr(await job.ahistory()) for job in jobs]

        return self.run(act)

    def events(self) -> list[tuple[str, str]]:
        """The events since it was asked last: subscribers are called in a thread of their own."""
        self.run(lambda harbor: harbor.events.aclose())
        events, self._events = self._events, []
        return events

    def states(self, *ids: str) -> list[str]:
        async def act(harbor: Harbor) -> list[str]:
            return [str((await harbor.jobs.aget(job_id)).state) for job_id in ids]

        return list(self.run(act))


class DiskFull(Exception):
    pass


async def work(fails: str = "") -> None:
    if fails == "disk":
        raise DiskFull("disk 7 is full")
    if fails:
        raise ConnectionError(fails)


@contextmanager
def stage_on(store: str, folder: Path) -> Iterator[Stage]:
    clock = ManualClock(START)
    if store == "postgres":
        with (
            postgres.fresh(clock) as first,
            closing(Stage(lambda: postgres.another(first, clock), clock)) as stage,
        ):
            yield stage
        return
    memory = MemoryDriver(clock)
    path = f"{folder}/harbor.db"
    stage = Stage(
        (lambda: memory)
        if store == "memory"
        else lambda: SQLiteDriver(path, synchronous="NORMAL", clock=clock),
        clock,
    )
    stage.run(lambda harbor: harbor.amigrate())
    with closing(stage):
        yield stage


# -- the surfaces ----------------------------------------------------------------------------------


class Surface:
    """What an operator can do, by names that are Python's."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage

    def page(self, *, dead: bool = False, **query: Any) -> Listed:
        raise NotImplementedError

    def count(self, *, dead: bool = False, **where: Any) -> Number:
        raise NotImplementedError

    def bulk(self, verb: str, *, dry_run: bool = False, **where: Any) -> Number:
        raise NotImplementedError

    def add(self, id: str) -> tuple[str, str]:
        """Dead-letter a job; its state and reason."""
        raise NotImplementedError

    def find(self, prefix: str) -> str:
        raise NotImplementedError

    def ids(self, *, dead: bool = False, **query: Any) -> list[str]:
        """All pages together."""
        found: list[str] = []
        cursor = None
        while True:
            page = self.page(dead=dead, **query, **({} if cursor is None else {"cursor": cursor}))
            found += page.ids
            cursor = page.cursor
            if cursor is None:
                return found


class InPython(Surface):
    def _run(self, act: Callable[[Harbor], Awaitable[Any]]) -> Any:
        try:
            return self.stage.run(act)
        except TaskHarborError as error:
            raise Refused(str(error)) from error

    def page(self, *, dead: bool = False, **query: Any) -> Listed:
        page = self._run(lambda harbor: (harbor.dlq if dead else harbor.jobs).alist(**query))
        return Listed([job.id for job in page], page.next_cursor, page.examined, page.reached)

    def count(self, *, dead: bool = False, **where: Any) -> Number:
        count = self._run(lambda harbor: (harbor.dlq if dead else harbor.jobs).acount(**where))
        return Number(int(count), count.more)

    def bulk(self, verb: str, *, dry_run: bool = False, **where: Any) -> Number:
        name = f"a{verb.replace('-', '_')}"
        changes = CHANGES if verb == "update-all" else {}

        def act(harbor: Harbor) -> Any:
            return getattr(harbor.dlq if verb in OF_DEAD else harbor.jobs, name)(
                dry_run=dry_run, **where, **changes
            )

        number = self._run(act)
        return Number(int(number), getattr(number, "more", False))

    def add(self, id: str) -> tuple[str, str]:
        job = self._run(lambda harbor: harbor.dlq.aadd(id))
        return str(job.state), str(job.reason)

    def find(self, prefix: str) -> str:
        return str(self._run(lambda harbor: harbor.jobs.afind(prefix)).id)


class OnCommandLine(Surface):
    def run(self, *words: str, code: int | None = 0) -> str:
        with mock.patch.object(Session, "open", return_value=self.stage.opened()):
            result = CliRunner().invoke(cli, list(words), prog_name="taskharbor")
        if result.exit_code and code is not None:
            [line] = result.stderr.splitlines()
            raise Refused(line.removeprefix("Error: "))
        return str(result.stdout) if code is not None else str(result.stdout + result.stderr)

    def page(self, *, dead: bool = False, **query: Any) -> Listed:
        page = json.loads(
            self.run(*(["dlq", "list"] if dead else ["list"]), "--limit", "100", "--json", *_options(query))
        )
        return _listed(page)

    def count(self, *, dead: bool = False, **where: Any) -> Number:
        words = [*(["dlq", "list"] if dead else ["list"]), "--count", *_options(where)]
        number = json.loads(self.run(*words, "--json"))
        told = self.run(*words).strip()
        assert told == f"{number['count']:,}{'+' if number['more'] else ''}"
        return Number(number["count"], number["more"])

    def bulk(self, verb: str, *, dry_run: bool = False, **where: Any) -> Number:
        words = [*(["dlq"] if verb in OF_DEAD else []), verb, *_options(where)]
        if verb == "update-all":
            words += _options(CHANGES)
        if dry_run:
            words.append("--dry-run")
        elif verb != "requeue-all":
            words.append("--yes")
        number = json.loads(self.run(*words, "--json"))
        assert number.get("dryRun", False) is dry_run
        answer = Number(number[DONE[verb]], number.get("more", False))
        if dry_run:
            assert (
                self.run(*words).strip()
                == f"{answer.jobs:,}{'+' if answer.more else ''} would be {DONE[verb]}"
            )
        return answer

    def add(self, id: str) -> tuple[str, str]:
        job = json.loads(self.run("dlq", "add", id, "--json"))
        return job["state"], job["reason"]

    def find(self, prefix: str) -> str:
        return str(json.loads(self.run("inspect", prefix, "--json"))["id"])


class OverRest(Surface):
    def send(self, method: str, path: str, **options: Any) -> Any:
        async def act(harbor: Harbor) -> httpx.Response:
            async with client_of(application(harbor, open_on_loopback=True)) as client:
                return await client.request(method, f"{API}{path}", **options)

        response = self.stage.run(act)
        if response.status_code >= 400:
            raise Refused(response.json()["error"]["message"], response.status_code)
        return response.json()

    def page(self, *, dead: bool = False, **query: Any) -> Listed:
        return _listed(self.send("GET", "/dlq" if dead else "/jobs", params=_fields(query)))

    def count(self, *, dead: bool = False, **where: Any) -> Number:
        number = self.send("GET", "/dlq/count" if dead else "/jobs/count", params=_fields(where))
        return Number(number["count"], number["more"])

    def bulk(self, verb: str, *, dry_run: bool = False, **where: Any) -> Number:
        body = _fields(where) | {"dryRun": dry_run}
        if "payload" in where:
            body["payload"] = where["payload"]
        if verb == "update-all":
            body["changes"] = CHANGES
        number = self.send("POST", f"/{'dlq' if verb in OF_DEAD else 'jobs'}/{verb}", json=body)
        assert number.get("dryRun", False) is dry_run
        return Number(number[DONE[verb]], number.get("more", False))

    def add(self, id: str) -> tuple[str, str]:
        job = self.send("POST", f"/dlq/{id}/add")
        return job["state"], job["reason"]

    def find(self, prefix: str) -> str:
        return str(self.send("GET", f"/jobs/{prefix}")["id"])


SURFACES: dict[str, type[Surface]] = {"python": InPython, "cli": OnCommandLine, "rest": OverRest}


def _listed(page: Any) -> Listed:
    reached = page.get("reached")
    return Listed(
        [job["id"] for job in page["items"]],
        page["nextCursor"],
        page.get("examined", 0),
        None if reached is None else datetime.fromisoformat(reached),
    )


def _written(value: Any) -> Any:
    if isinstance(value, dict):
        return json.dumps(value)
    return value.isoformat() if isinstance(value, datetime) else value


def _options(where: dict[str, Any]) -> list[str]:
    names = {"fingerprint": "group"}
    values = where.get("payload", {})
    return [
        word for path, value in values.items() for word in ("--payload", f"{path}:={json.dumps(value)}")
    ] + [
        word
        for name, value in where.items()
        if name != "payload"
        for word in (f"--{names.get(name, name).replace('_', '-')}", str(_written(value)))
    ]


def _fields(where: dict[str, Any]) -> dict[str, Any]:
    def camel(name: str) -> str:
        first, *others = name.split("_")
        return first + "".join(word.capitalize() for word in others)

    return {camel(name): _written(value) for name, value in where.items()}
