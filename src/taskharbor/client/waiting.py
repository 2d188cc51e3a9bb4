"""Wait for the end of a job or a workflow: look again whenever the store changes."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from msgspec import Struct

from taskharbor.clock import check_seconds
from taskharbor.drivers.base import Driver

T = TypeVar("T")

POLL_SECONDS = 1.0  # in case a notification of the store is lost


class Pending(Struct, frozen=True):
    """It has not ended; `still` is the text of the TimeoutError."""

    still: str  # "job … is still running"
    more: str = ""


async def until_ended(
    driver: Driver, timeout: float | None, look: Callable[[], Coroutine[Any, Any, T | Pending]]
) -> T:
    """Call `look` after every change until it returns a value; raise TimeoutError after `timeout` seconds."""
    if timeout is not None:
        timeout = check_seconds(timeout, "timeout")
    give_up_at = None if timeout is None else driver.clock.monotonic() + timeout
    while True:
        token = driver.change_token()
        found = await look()
        if not isinstance(found, Pending):
            return found
        remaining = POLL_SECONDS
        if give_up_at is not None:
            remaining = min(remaining, give_up_at - driver.clock.monotonic())
            if remaining <= 0:
                raise TimeoutError(f"{found.still} after {timeout:g} s{found.more}")
        await driver.wait_for_change(token, remaining)
