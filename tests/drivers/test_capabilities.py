"""A store may offer the core alone: it passes the chapters of the core, and names what it lacks."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from taskharbor import Context, Harbor, RetryPolicy, Worker, chain, conformance
from taskharbor.clock import ManualClock
from taskharbor.drivers import capabilities
from taskharbor.drivers.capabilities import CAPABILITIES, Capability, Copying, Steps, Transactions, Upkeep
from taskharbor.drivers.memory import MemoryDriver
from taskharbor.drivers.postgres import PostgresDriver
from taskharbor.drivers.sqlite import SQLiteDriver
from taskharbor.errors import MissingCapability
from taskharbor.server.app import application
from taskharbor.server.tokens import create_token
from taskharbor.views.workers import workers_of
from tests.drivers.core_only import offering
from tests.server.conftest import client_of
from tests.server.test_resources import API

NO_JOB = "00000000-0000-0000-0000-000000000000"
ROOT = Path(__file__).parents[2]

CoreOnly = offering()
TestCore = conformance.suite(CoreOnly)
TestCoreMachine = conformance.state_machine(CoreOnly, examples=10)
# Half of the capabilities: whatever a chapter needs of the others is left out.
TestCoreWithSteps = conformance.suite(offering(Steps, Upkeep))


def test_every_capability_is_listed() -> None:
    """The conformance suite skips the chapter of one that is not, on every store, and the reference leaves it out."""
    defined = {
        each
        for each in vars(capabilities).values()
        if isinstance(each, type) and issubclass(each, Capability)
    }
    assert defined - {Capability} == set(CAPABILITIES)


@pytest.mark.parametrize("driver", [SQLiteDriver, PostgresDriver, MemoryDriver])
def test_our_drivers_offer_every_capability_and_so_skip_no_chapter(driver: type[object]) -> None:
    """Memory has no database: no caller has a transaction in it, and nothing outlives its process to be copied."""
    withheld = {Transactions, Copying} if driver is MemoryDriver else set()
    assert {each for each in CAPABILITIES if not issubclass(driver, each)} == withheld


def run_suite(tmp_path: Path, driver: str, chapters: str) -> str:
    file = tmp_path / "test_store.py"
    file.write_text(
        "from taskharbor import conformance\n"
        "from taskharbor.drivers.capabilities import Records\n"
        "from tests.drivers.core_only import offering\n"
        f"{driver}\n"
        "TestStore = conformance.suite(Store)\n"
    )
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-rs",
        "-p",
        "no:cacheprovider",
        *("-p", "pytest_asyncio.plugin", "-p", "pytest_timeout"),
        "-k",
        chapters,
        str(file),
    ]
    # Just the plugins that our settings speak of: importing all that are installed takes longer than the tests.
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    ).stdout


def test_chapters_of_a_missing_capability_are_skipped_by_name(tmp_path: Path) -> None:
    output = run_suite(tmp_path, "Store = offering()", "test_records_come_by_key or test_closing_twice")
    assert "1 passed, 1 skipped" in output
    assert "the store has no records" in output


def test_driver_must_pass_the_chapters_of_what_it_offers(tmp_path: Path) -> None:
    forgetful = "class Store(offering(Records)):\n    async def put_records(self, *_, **__): pass\n"
    output = run_suite(tmp_path, forgetful, "test_records_come_by_key or test_closing_twice")
    assert "1 failed, 1 passed" in output


# -- what a harbor says ----------------------------------------------------------------------------


@pytest.fixture
def core() -> Harbor:
    return Harbor(driver=CoreOnly())


def lacking(capability: str) -> Any:
    return pytest.raises(MissingCapability, match=rf"^this store \(CoreDriver\) has no {capability}: .+")


async def test_worker_runs_plain_jobs_on_a_store_with_the_core_alone(
    core: Harbor, caplog: pytest.LogCaptureFixture
) -> None:
    """From the enqueue to the result, with a retry and without a complaint about what is missing."""
    tries: list[int] = []

    @core.task(name="double", retry=RetryPolicy(delay=lambda _: 0.0))
    def double(n: int) -> int:
        tries.append(n)
        if len(tries) == 1:
            raise RuntimeError("not yet")
        return 2 * n

    job = await double.aenqueue(21)
    async with Worker(core):
        assert await job.aresult(timeout=60) == 42
    assert len(await job.ahistory()) == 2
    assert [record.message for record in caplog.records if "has no" in record.getMessage()] == []


async def test_idle_worker_does_its_upkeep_without_what_the_store_lacks(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Sweeps, pruning and the report of its presence are left out; hours pass without an error."""
    clock = ManualClock(1_767_225_600_000_000)
    harbor = Harbor(driver=CoreOnly(clock))
    async with Worker(harbor, name="w"):
        for _ in range(400):
            await clock.jump(1.0)
        job = await harbor.aenqueue("unknown task", delay=1)
        assert (await workers_of(harbor)) == []
    assert (await job.arefresh()).state == "scheduled"
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_handler_that_needs_steps_fails_with_the_name_of_what_is_missing(core: Harbor) -> None:
    @core.task(name="charge", retry=None)
    async def charge(ctx: Context) -> None:
        await ctx.step("charge", lambda: 1)

    job = await charge.aenqueue()
    await Worker(core).drain()
    assert "this store (CoreDriver) has no durable steps: " in str((await job.arefresh()).error)


def plain() -> None: ...


CALLS: dict[str, tuple[str, Callable[[Harbor], Any]]] = {
    "workflows.get": ("workflows", lambda h: h.workflows.get(NO_JOB)),
    "workflows.list": ("workflows", lambda h: h.workflows.list()),
    "workflows.enqueue": ("workflows", lambda h: h.workflows.enqueue(chain(h.task(name="t")(plain).s()))),
    "jobs.steps": ("durable steps", lambda h: h.jobs.steps(NO_JOB)),
    "prune": ("upkeep", lambda h: h.prune()),
    "transaction": ("callers' transactions", lambda h: h.transaction(object()).__enter__()),
    "stats.series": ("roll-ups", lambda h: h.stats.series()),
    "stats.slots_wanted": ("roll-ups", lambda h: h.stats.slots_wanted()),
    "tokens": ("records", lambda h: asyncio.run(create_token(h.driver, "n", "read"))),
}


@pytest.mark.parametrize("call", CALLS)
def test_harbor_names_the_store_and_the_capability_it_lacks(core: Harbor, call: str) -> None:
    capability, act = CALLS[call]
    with lacking(capability) as caught:
        act(core)
    assert caught.value.capability == capability


async def test_rest_interface_answers_501_with_the_missing_capability(core: Harbor) -> None:
    """A server with tokens needs records; one whose application decides who may call needs none."""
    async with client_of(application(core, authorize=lambda _: "admin")) as client:
        assert (await client.get(f"{API}/jobs")).status_code == 200
        assert (await client.get("/readyz")).status_code == 200
        response = await client.get(f"{API}/workflows")
    assert response.status_code == 501
    error = response.json()["error"]
    assert (error["code"], error["details"]) == ("unsupported", {"capability": "workflows"})
    async with client_of(application(core)) as client:
        assert (await client.get(f"{API}/jobs")).status_code == 501
