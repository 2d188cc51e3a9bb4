"""Count the functions that one job passes through, from `enqueue` to its result: `python -m tools.job_path`.

A worker on SQLite runs in this process. A first job opens and warms up everything. A profiler in every thread follows
the second job: each function of `src/taskharbor` that it enters counts once, whatever calls it.
The clock does not advance, so that nothing else becomes due.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import threading
from collections import defaultdict
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import taskharbor
from taskharbor import Harbor, Worker
from taskharbor.clock import ManualClock

PACKAGE = Path(taskharbor.__file__).parent


class Entered:
    """A profiler that remembers which functions were entered, in their order. It is off until it is switched on."""

    def __init__(self) -> None:
        self.is_on = False
        self._codes: dict[CodeType, None] = {}

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if self.is_on and event == "call" and frame.f_code.co_filename.startswith(str(PACKAGE)):
            self._codes[frame.f_code] = None

    def by_file(self) -> dict[str, list[str]]:
        """Named functions; the comprehensions and lambdas inside of one are a part of it."""
        files: dict[str, list[str]] = defaultdict(list)
        for code in self._codes:
            if "<" not in code.co_name:
                files[str(Path(code.co_filename).relative_to(PACKAGE))].append(code.co_qualname)
        return files


async def follow_one_job(folder: str) -> dict[str, list[str]]:
    entered = Entered()
    threading.setprofile(entered)  # for the threads that the driver starts
    sys.setprofile(entered)
    harbor = Harbor(f"sqlite:///{folder}/harbor.db", clock=ManualClock())

    @harbor.task
    async def double(number: int) -> int:
        return 2 * number

    worker = Worker(harbor)
    running = asyncio.ensure_future(worker.run())
    assert await (await double.aenqueue(1)).aresult() == 2
    entered.is_on = True
    job = await double.aenqueue(2)
    assert await job.aresult() == 4
    entered.is_on = False
    sys.setprofile(None)
    threading.setprofile(None)
    worker.stop()
    await running
    return entered.by_file()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--list", action="store_true", help="name the functions")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        files = asyncio.run(follow_one_job(folder))
    for name, functions in files.items():
        print(f"{len(functions):4}  {name}")
        if arguments.list:
            print("\n".join(f"        {function}" for function in functions))
    print(f"{sum(map(len, files.values()))} functions in {len(files)} files")


if __name__ == "__main__":
    main()
