"""Synchronous forms of asynchronous methods: both forms share one implementation."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from taskharbor.drivers.base import Driver
from taskharbor.sync import run_inline, run_on_loop_thread

P = ParamSpec("P")
R = TypeVar("R")


class OnDriver(Protocol):
    """An object with methods in both forms, and the driver that they use."""

    @property
    def _driver(self) -> Driver: ...


S = TypeVar("S", bound=OnDriver)

# Methods that may use the caller's connection inside `harbor.transaction(…)`.
_TAKE_PART = frozenset({"aenqueue", "aenqueue_many", "aget", "arefresh"})


def sync_method(
    method: Callable[Concatenate[S, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[S, P], R]:
    """Make the synchronous form of an `async` method whose name begins with `a`."""
    name = method.__name__
    assert name.startswith("a"), f"{name} is not named as an asynchronous form"

    takes_part = name in _TAKE_PART

    @wraps(method)
    def sync(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        _warn_inside_a_loop(name)
        driver = self._driver
        here = driver.inline or (takes_part and _uses_callers_thread(driver))
        try:
            call = method(self, *args, **kwargs)
        except TypeError as error:  # from binding the arguments: the coroutine has not begun
            raise _named_rightly(error, method) from None
        return (run_inline if here else run_on_loop_thread)(call)

    sync.__name__ = name[1:]
    sync.__qualname__ = method.__qualname__.replace(name, name[1:])
    sync.__doc__ = f"{method.__doc__ or ''}\n\n(The asynchronous form is `{name}`.)"
    return sync


def _uses_callers_thread(driver: Driver) -> bool:
    from taskharbor.drivers.capabilities import Transactions  # a program that never calls starts without it

    return isinstance(driver, Transactions) and driver.uses_callers_thread()


def _named_rightly(error: TypeError, method: Callable[..., Any]) -> TypeError:
    """Rewrite Python's error: the name that was called, and the arguments it takes."""
    import inspect

    name = method.__name__
    taken = ", ".join(each for each in inspect.signature(method).parameters if each != "self")
    text = str(error).replace(f"{name}()", f"{name[1:]}()", 1)
    return TypeError(f"{text}; it takes {taken}" if taken else text)


def _warn_inside_a_loop(asynchronous: str) -> None:
    """Warn once that a synchronous call blocks the running loop."""
    asyncio = sys.modules.get("asyncio")  # if it is not loaded, no loop can be running
    if asyncio is not None and asyncio._get_running_loop() is not None and not _warned:
        _warned.append(asynchronous)
        warnings.warn(
            f"{asynchronous[1:]}() was called inside a running event loop, which waits until it is done; "
            f"use `await …{asynchronous}()` there",
            RuntimeWarning,
            stacklevel=3,
        )


_warned: list[str] = []
