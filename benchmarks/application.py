"""The application that is measured from outside, by TaskHarbor's own commands.

Its store is in TASKHARBOR_URL. Each worker process appends one line to the file in BENCH_REPORT when it ends: how
many handlers it ran, and when the first and the last of them began, by the clock that all processes share.
"""

from __future__ import annotations

import asyncio
import json
import os
import time

from taskharbor import Harbor

REPORT_VARIABLE = "BENCH_REPORT"

harbor = Harbor(os.environ["TASKHARBOR_URL"])
began: list[float] = []


@harbor.task(name="noop")
async def noop() -> None:
    began.append(time.monotonic())


@harbor.task(name="hold")
async def hold(file: str) -> None:
    """Note every begin in the file. The first one holds on until its process is killed."""
    with open(file, "a+", encoding="utf-8") as begins:  # noqa: ASYNC230 - one line, to be there before the kill
        begins.write(json.dumps([os.getpid(), time.monotonic()]) + "\n")
        begins.flush()
        begins.seek(0)
        is_first = len(begins.readlines()) == 1
    if is_first:
        await asyncio.sleep(3600)


@harbor.on_worker_stop
def report() -> None:
    if began and REPORT_VARIABLE in os.environ:
        with open(os.environ[REPORT_VARIABLE], "a", encoding="utf-8") as file:
            file.write(json.dumps([len(began), began[0], began[-1]]) + "\n")
