"""Tasks that need no application.

Every harbor knows `http`, `taskharbor.replay` and `taskharbor.bulk`; a task that you declare under the same name takes
precedence. `echo`, `sleep` and `fail` are for trying a store, a worker or a command:

taskharbor worker
taskharbor enqueue echo message=hello --wait 10
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taskharbor.codec import counted
from taskharbor.context import Context
from taskharbor.errors import ConfigurationError

if TYPE_CHECKING:
    from taskharbor.client.harbor import Harbor
    from taskharbor.client.task import Task

REPLAY = "taskharbor.replay"
BULK = "taskharbor.bulk"
EVERYWHERE = frozenset({"http", REPLAY, BULK})
TRIAL_NAMES = ("echo", "sleep", "fail")


def task_of(harbor: Harbor, name: str) -> Task[Any, Any, Any, Any] | None:
    """Return the task, made on first use. Enqueueing it needs no extra."""
    if name not in EVERYWHERE:
        return None
    found = harbor.built_in.get(name)
    if found is None:
        found = harbor.built_in[name] = _made(harbor, name)
    return found


def _made(harbor: Harbor, name: str) -> Task[Any, Any, Any, Any]:
    if name == REPLAY:
        from taskharbor.replay import replay_task

        return replay_task(harbor)
    if name == BULK:
        from taskharbor.bulk import bulk_task

        return bulk_task(harbor)
    from taskharbor.http.task import http_task

    return http_task(harbor)


def runnable_task_of(harbor: Harbor, name: str) -> Task[Any, Any, Any, Any] | None:
    """Return the task, if the packages that it needs to run are installed."""
    if name != "http":
        return task_of(harbor, name)
    from taskharbor.http.task import is_installed

    return task_of(harbor, name) if is_installed() else None


def why_unknown(name: str) -> str:
    """Say why a worker knows no task of this name."""
    if name not in EVERYWHERE:
        return f"no task is called {name!r} here"
    from taskharbor.http.task import MISSING_EXTRA

    return f"{MISSING_EXTRA}, where this worker runs"


def register(harbor: Harbor) -> None:
    """Register `echo`, `sleep` and `fail` with a harbor."""
    harbor.task(name="echo")(echo)
    harbor.task(name="sleep")(sleep)
    harbor.task(name="fail")(fail)


async def echo(message: Any = None) -> Any:
    """Return the message."""
    return message


async def sleep(seconds: float = 1.0) -> float:
    """Sleep that many seconds, and return the number."""
    import asyncio  # a producer need not wait for it to load

    await asyncio.sleep(seconds)
    return seconds


async def fail(ctx: Context, message: str = "failed on purpose", times: int | None = None) -> str:
    """Fail, every time or the first `times` times of a run."""
    if times is not None and times < 0:
        raise ConfigurationError(f"times must be 0 or more, not {times}")
    if times is None or ctx.retry_count < times:
        raise RuntimeError(message)
    return f"succeeded after {counted(times, 'failure')}"
