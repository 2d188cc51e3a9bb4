"""Ctrl-C while PostgreSQL is asked something: what a person sees of it."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Sequence

import asyncpg
import pytest

from taskharbor import Harbor

# The command, which interrupts itself as soon as its first connection has been accepted.
AT_CONNECT = """
import asyncio, os, signal, sys
from taskharbor import sync
from taskharbor.cli import main


class Loop(asyncio.SelectorEventLoop):
    interrupted = False

    async def create_connection(self, factory, *args, **options):
        def made():
            protocol = factory()
            inner = protocol.connection_made

            def connection_made(transport):
                inner(transport)
                if not self.interrupted:
                    self.interrupted = True
                    os.kill(os.getpid(), signal.SIGINT)

            protocol.connection_made = connection_made
            return protocol

        return await super().create_connection(made, *args, **options)


sync._loop_maker = lambda: Loop
main()
"""


# Of this database. Unlike pg_stat_activity it is new each time that a transaction looks.
WAITING = """
SELECT count(*) FROM pg_locks WHERE NOT granted
AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""


def interrupted(words: Sequence[str], dsn: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-c", AT_CONNECT, *words, "--url", dsn]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def store(dsn: str) -> str:
    with Harbor(dsn) as harbor:
        harbor.migrate()
    return dsn


@pytest.mark.parametrize("words", [["stats"], ["enqueue", "echo"]], ids=["stats", "enqueue"])
def test_an_interrupt_while_a_connection_is_made_is_one_line(store: str, words: list[str]) -> None:
    done = interrupted(words, store)
    assert (done.returncode, done.stdout, done.stderr.strip()) == (130, "", "Error: interrupted")


@pytest.mark.parametrize("words", [["stats"], ["enqueue", "echo"]], ids=["stats", "enqueue"])
async def test_an_interrupt_while_a_statement_waits_is_one_line(store: str, words: list[str]) -> None:
    blocker = await asyncpg.connect(store)
    try:
        tables = await blocker.fetch(
            "SELECT format('%I.%I', schemaname, tablename) AS name FROM pg_tables WHERE schemaname = 'taskharbor'"
        )
        assert tables
        async with blocker.transaction():
            for table in tables:
                await blocker.execute(f"LOCK TABLE {table['name']} IN ACCESS EXCLUSIVE MODE")
            command = [sys.executable, "-P", "-m", "taskharbor.cli", *words, "--url", store]
            process = await asyncio.create_subprocess_exec(
                *command, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
            ending = asyncio.ensure_future(process.communicate())
            while not await blocker.fetchval(WAITING):
                assert not ending.done(), ending.result()
                await asyncio.sleep(0.01)
            process.send_signal(signal.SIGINT)
            out, err = await asyncio.wait_for(ending, 60)
    finally:
        await blocker.close()
    assert (process.returncode, out, err.strip()) == (130, b"", b"Error: interrupted")
