"""Tasks that need no application: to try a store, a worker or a command with.

taskharbor worker
taskharbor enqueue echo message=hello --wait 10
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from taskharbor.codec import counted
from taskharbor.context import Context
from taskharbor.errors import ConfigurationError

if TYPE_CHECKING:
    from taskharbor.client.harbor import Harbor

NAMES = ("echo", "sleep", "fail")


def register(harbor: Harbor) -> None:
    """Make `echo`, `sleep` and `fail` known to a harbor."""
    harbor.task(name="echo")(echo)
    harbor.task(name="sleep")(sleep)
    harbor.task(name="fail")(fail)


async def echo(message: Any = None) -> Any:
    """Give back what it was given."""
    return message


async def sleep(seconds: float = 1.0) -> float:
    """Take so many seconds, and give back how many."""
    await asyncio.sleep(seconds)
    return seconds


async def fail(ctx: Context, message: str = "failed on purpose", times: int | None = None) -> str:
    """Fail, every time or the first `times` times of a run."""
    if times is not None and times < 0:
        raise ConfigurationError(f"times must be 0 or more, not {times}")
    if times is None or ctx.retry_count < times:
        raise RuntimeError(message)
    return f"succeeded after {counted(times, 'failure')}"
