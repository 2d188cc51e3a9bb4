"""Handlers that the tests run in processes of their own: a process finds them by importing this module."""

from __future__ import annotations

import asyncio
import ctypes
import functools
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from taskharbor import Context, Harbor, RetryAfter, StopRequested, Unrecoverable, current_context

PATIENCE_SECONDS = 120.0  # longer than that of the tests, which end what hangs

harbor = Harbor("memory://")
opened: list[str] = []


class OddError(LookupError):
    pass


@dataclass
class Receipt:
    number: int
    pid: int


def wait_for_file(path: str | Path) -> None:
    give_up_at = time.monotonic() + PATIENCE_SECONDS
    while not os.path.exists(path):
        assert time.monotonic() < give_up_at, f"{path} did not come"
        time.sleep(0.002)


def tell(path: str | Path, text: str) -> None:
    """Whole when it is there, whatever becomes of this process."""
    whole = f"{path}.{os.getpid()}.part"
    Path(whole).write_text(text)
    os.rename(whole, path)


# -- what comes back -----------------------------------------------------------------------------


def add(x: int, y: int = 2) -> int:
    return x + y


async def add_async(x: int, y: int = 2) -> int:
    await asyncio.sleep(0)
    return x + y


def pid() -> int:
    return os.getpid()


def open_files() -> list[str]:
    """What this process has open: `socket:[123]`, paths."""
    found = []
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        except OSError:  # the one that the folder was read by
            continue
    return found


def receipt() -> Receipt:
    return Receipt(7, os.getpid())


def odd() -> None:
    raise OddError("nobody knows: ünïcode")


def unrecoverable() -> None:
    raise Unrecoverable("no use")


def later() -> None:
    raise RetryAfter(77)


def unstorable() -> object:
    return object()


def text_of(length: int) -> str:
    return "x" * length


def length_of(text: str) -> int:
    return len(text)


# -- the context ---------------------------------------------------------------------------------


def tell_context(ctx: Context) -> dict[str, Any]:
    assert current_context().job.id == ctx.job.id
    ctx.progress(0.25, "begun", value={"rows": 1})
    ctx.logger.warning("from the %s", "process", extra={"fields": {"own": 5, "odd": Path("/")}})
    logging.getLogger("elsewhere").error("plain")
    return {
        "id": ctx.job.id,
        "task": ctx.job.task,
        "attempt": ctx.attempt,
        "retry_count": ctx.retry_count,
        "correlation_id": ctx.correlation_id,
        "meta": ctx.job.meta,
        "deadline": None if ctx.deadline is None else ctx.deadline.isoformat(),
        "cancelled": ctx.cancelled,
    }


@harbor.task(name="isolated.small", max_attempts=3)
def small(n: int) -> int:
    return n


def with_children(ctx: Context, count: int, fail: bool = False) -> list[str]:
    ids = [ctx.enqueue(small.using(priority=5).s(n)) for n in range(count)]
    if fail:
        raise OddError("after all")
    return ids


def bad_child(ctx: Context) -> None:
    ctx.enqueue(small.s("no number"))


# -- ends ----------------------------------------------------------------------------------------


def hang(begun: str) -> None:
    tell(begun, str(os.getpid()))
    time.sleep(PATIENCE_SECONDS)


def hang_in_c(begun: str) -> None:
    """Holding the interpreter's lock: no thread of this process can do anything."""
    tell(begun, str(os.getpid()))
    ctypes.PyDLL(None).sleep(int(PATIENCE_SECONDS))


async def hang_async(begun: str, ended: str) -> None:
    tell(begun, str(os.getpid()))
    try:
        await asyncio.sleep(PATIENCE_SECONDS)
    except asyncio.CancelledError:
        tell(ended, "cancelled")
        raise


def wait_for(begun: str, release: str) -> str:
    tell(begun, str(os.getpid()))
    wait_for_file(release)
    return "done"


def until_cancelled(ctx: Context, begun: str) -> str:
    tell(begun, str(os.getpid()))
    give_up_at = time.monotonic() + PATIENCE_SECONDS
    while not ctx.cancelled:
        assert time.monotonic() < give_up_at
        time.sleep(0.002)
    return "ended by itself"


def with_grandchild(begun: str, and_die: bool = False) -> None:
    sleeper = subprocess.Popen(["sleep", str(PATIENCE_SECONDS)])
    tell(begun, str(sleeper.pid))
    if and_die:
        os._exit(9)
    sleeper.wait()


def with_lasting_grandchild() -> int:
    return subprocess.Popen(["sleep", str(PATIENCE_SECONDS)]).pid


def die(how: str) -> None:
    match how:
        case "exit":
            os._exit(3)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "segfault":
            ctypes.string_at(0)


def die_once(marker: str) -> str:
    if not os.path.exists(marker):
        tell(marker, "died")
        os._exit(3)
    return "survived"


def leave() -> None:
    sys.exit("farewell")


def meet(folder: str, mine: str, other: str) -> int:
    """Computes until the other one has begun as well: it ends only if both run at once."""
    tell(Path(folder) / mine, "here")
    give_up_at = time.monotonic() + PATIENCE_SECONDS
    while not (Path(folder) / other).exists():
        assert time.monotonic() < give_up_at
        sum(range(1000))
    return os.getpid()


def leave_a_thread_behind(ctx: Context, release: str) -> None:
    def report_late() -> None:
        wait_for_file(release)
        ctx.progress(0.9, "late")

    threading.Thread(target=report_late, daemon=True).start()


def after_release(ctx: Context, release: str) -> str:
    ctx.progress(0.1, "mine")
    tell(release, "now")
    time.sleep(0.05)
    return "done"


def signalled() -> str:
    """As a service manager that stops the whole tree does."""
    os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGINT)
    sleeper = subprocess.Popen(["sleep", str(PATIENCE_SECONDS)])
    sleeper.terminate()  # what a handler starts can be terminated all the same
    return signal.Signals(-sleeper.wait(PATIENCE_SECONDS)).name


def own_loop() -> int:
    return asyncio.run(add_async(1, 1))


def say(text: str) -> None:
    print(text)
    print(text.upper(), file=sys.stderr)


# -- declarations of all kinds -------------------------------------------------------------------


def shouting(function: Callable[..., Any]) -> Any:
    @functools.wraps(function)
    def louder(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs).upper()

    return louder


@shouting
def decorated(word: str) -> str:
    return word


@harbor.task(name="isolated.declared", isolation="process", parameter_aliases={"old": "word"})
def declared(word: str) -> str:
    return word


@shouting
@harbor.task(name="isolated.inside", isolation="process")
def inside(word: str) -> str:
    """The task is what stands under the decorator; a job calls the task's own function."""
    return word


class Namespace:
    @staticmethod
    def method(word: str) -> str:
        return word


# -- hooks ---------------------------------------------------------------------------------------


async def open_something() -> None:
    await asyncio.sleep(0)
    opened.append(f"opened in {os.getpid()}")


def what_is_open() -> list[str]:
    return list(opened)


worker_process: int | None = None  # set in a test's own process, and there only


def fail_to_open_elsewhere() -> None:
    if worker_process is None:
        raise ConnectionError("the database is away")


def close_something() -> None:
    tell(os.environ["CLOSED_FILE"], str(os.getpid()))


# -- durable steps -------------------------------------------------------------------------------


def charge(folder: str) -> Receipt:
    with Path(folder, "charges").open("a") as lines:
        lines.write("charged\n")
    return Receipt(7, os.getpid())


async def order_async(ctx: Context, folder: str) -> int:
    receipt = await ctx.step("charge", charge, folder)
    if ctx.retry_count == 0:
        raise ConnectionError("after the charge")
    await ctx.sleep("an-hour", 3_600)
    assert isinstance(receipt, Receipt)
    return receipt.number


def order_sync(ctx: Context, folder: str) -> int:
    receipt = ctx.step("charge", charge, folder)
    if ctx.retry_count == 0:
        raise ConnectionError("after the charge")
    ctx.sleep("an-hour", 3_600)
    assert isinstance(receipt, Receipt)
    return receipt.number


def late_step(ctx: Context, folder: str) -> None:
    tell(Path(folder, "begun"), str(os.getpid()))
    wait_for_file(Path(folder, "go-on"))
    ctx.step("late", int)
    tell(Path(folder, "went-on"), "1")


def total(numbers: list[int]) -> int:
    return sum(numbers)


# -- stopping ------------------------------------------------------------------------------------


def until_stopped(ctx: Context, begun: str) -> None:
    tell(begun, str(os.getpid()))
    give_up_at = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < give_up_at:
        ctx.raise_if_stopped()
        time.sleep(0.002)


async def until_stopped_in_a_group(ctx: Context, begun: str) -> None:
    async def look() -> None:
        try:
            await asyncio.sleep(PATIENCE_SECONDS)
        except asyncio.CancelledError:
            ctx.raise_if_stopped()
            raise

    tell(begun, str(os.getpid()))
    async with asyncio.TaskGroup() as group:
        group.create_task(look())


def until_asked_and_once_more(ctx: Context, begun: str) -> str:
    """An at_most_once job: to be asked is not to be stopped."""
    tell(begun, str(os.getpid()))
    give_up_at = time.monotonic() + PATIENCE_SECONDS
    while ctx.stop_requested is None:
        assert time.monotonic() < give_up_at
        time.sleep(0.002)
    ctx.raise_if_stopped()
    return f"finished in spite of {ctx.stop_requested}"


def stop_of_another(ctx: Context) -> None:
    raise StopRequested("shutdown", ctx.job.id, ctx.job.number + 1)
