"""The application that the supervised processes load; the environment names its store and folder."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from taskharbor import Context, Harbor

FOLDER = Path(os.environ["SHOP_FOLDER"])
harbor = Harbor()


def append_line(file: str, text: object) -> None:
    """Append one whole line, which is in the file when this returns, even if this process then dies."""
    line = os.open(FOLDER / file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(line, f"{text}\n".encode())
    finally:
        os.close(line)


def begun(n: int) -> None:
    append_line("executions", f"{n} {os.getpid()}")


@harbor.task(name="note")
async def note(n: int, seconds: float = 0.0) -> int:
    begun(n)
    if seconds:
        await asyncio.sleep(seconds)
    return n


@harbor.task(name="fail")
async def fail() -> None:
    raise RuntimeError("out of order")


@harbor.task(name="until_released")
async def until_released(ctx: Context) -> int:
    """Run until the test creates the file `release`."""
    begun(0)
    while not (FOLDER / "release").exists():  # noqa: ASYNC110 - another process makes it
        await asyncio.sleep(0.005)
    return os.getpid()


@harbor.task(name="enqueue_child_when_released")
async def enqueue_child_when_released(ctx: Context) -> None:
    await until_released(ctx)
    ctx.enqueue(note.s(n=7))


@harbor.task(name="block_when_released")
async def block_when_released(ctx: Context) -> None:
    """Leave the loop free until then, and block it afterwards."""
    await until_released(ctx)
    time.sleep(300)  # noqa: ASYNC251 - that is the point


@harbor.task(name="hold_gil")
def hold_gil(seconds: int) -> int:
    begun(0)
    ctypes.PyDLL(None).sleep(seconds)
    return seconds


@harbor.task(name="block_loop")
async def block_loop(seconds: float) -> float:
    begun(0)
    time.sleep(seconds)  # noqa: ASYNC251 - that is the point
    return seconds


@harbor.task(name="block_until_released")
async def block_until_released() -> None:
    begun(0)
    while not (FOLDER / "release").exists():
        time.sleep(0.01)  # noqa: ASYNC251 - that is the point


@harbor.task(name="die")
async def die(how: str) -> None:
    begun(0)
    append_line("strikes", os.getpid())
    match how:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "segfault":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "exit":
            os._exit(3)
        case "exit 0":
            os._exit(0)


@harbor.task(name="die_with_offspring")
def die_with_offspring() -> None:
    """Leaves a process behind that writes, unless its group is ended."""
    begun(0)
    if len((FOLDER / "executions").read_text().splitlines()) == 1:
        script = "import time,sys\nwhile True:\n  open(sys.argv[1],'a').write('x')\n  time.sleep(0.01)"
        subprocess.Popen([sys.executable, "-c", script, str(FOLDER / "offspring")])
        while not (FOLDER / "offspring").exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
    append_line("sizes", (FOLDER / "offspring").stat().st_size)


@harbor.task(name="heed_nothing", timeout=0.2, max_attempts=1)
def heed_nothing() -> None:
    begun(0)
    while True:
        try:
            time.sleep(60)
        except BaseException:
            pass


@harbor.task(name="grow")
def grow(mib: int) -> int:
    begun(0)
    _grown.append(bytearray(mib * 1024 * 1024))
    return os.getpid()


_grown: list[bytearray] = []


@harbor.on("lost")
def lost(event) -> None:
    append_line("lost", f"{event.job_id} {os.getpid()}")


@harbor.on("stuck")
def break_down(event) -> None:
    raise RuntimeError("this subscriber is broken")


@harbor.on("stuck")
def stuck(event) -> None:
    append_line("stuck", f"{event.worker} {','.join(event.jobs)} {os.getpid()} {event.error}")


@harbor.on_worker_start
def ready() -> None:
    append_line("workers", os.getpid())


@harbor.on_worker_stop
def over() -> None:
    append_line("stopped", os.getpid())
