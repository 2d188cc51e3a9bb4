"""The text of a traceback is that of the standard library, however often the place has failed before."""

from __future__ import annotations

import traceback
from collections.abc import Callable

import pytest

from taskharbor.worker.handlers import tracebacks


def divide(by: int) -> float:
    return 1 / by if by > -1 else int("x" * by)


def in_two_places(second: bool) -> float:
    if second:
        return divide(0) + 1
    return 1 + divide(0)


def from_another() -> None:
    try:
        divide(0)
    except ZeroDivisionError as error:
        raise KeyError("k") from error


def while_handling(hidden: bool) -> None:
    try:
        divide(0)
    except ZeroDivisionError:
        if hidden:
            raise ValueError("hidden") from None
        raise ValueError("two\nlines")  # noqa: B904 - the context is what is tested


def with_notes() -> None:
    error = ValueError("x")
    error.add_note("a note")
    raise error


def misspelt() -> None:
    value = 1
    print(valu, value)  # type: ignore[name-defined]  # noqa: F821 - what is tested


def grouped() -> None:
    raise ExceptionGroup("both", [ValueError("x"), KeyError("y")])


def calls_itself(depth: int) -> float:
    return calls_itself(depth - 1) if depth else divide(0)


def ping(depth: int) -> float:
    return pong(depth - 1) if depth else divide(0)


def pong(depth: int) -> float:
    return ping(depth)


FAILURES: dict[str, Callable[[], object]] = {
    "plain": lambda: divide(0),
    "another line": lambda: in_two_places(True),
    "the other line": lambda: in_two_places(False),
    "another error on the same line": lambda: divide(-2),
    "a cause": from_another,
    "a context": lambda: while_handling(False),
    "a hidden context": lambda: while_handling(True),
    "notes": with_notes,
    "a name that is like another": misspelt,
    "a group": grouped,
    "recursion": lambda: calls_itself(10),
    "many frames": lambda: ping(60),
    "no valid source": lambda: exec("1 +"),
    "code without a file": lambda: exec("1 / 0"),
}


@pytest.mark.parametrize("name", FAILURES)
def test_traceback_is_that_of_the_standard_library(name: str) -> None:
    for _ in range(2):  # formatted anew, and remembered
        with pytest.raises(Exception) as caught:
            FAILURES[name]()
        error = caught.value
        expected = "".join(traceback.format_exception(type(error), error, error.__traceback__, limit=-50))
        assert tracebacks.formatted(error, error.__traceback__) == expected


def test_equal_code_of_different_files_keeps_its_file() -> None:
    """Nor are the places remembered without end."""
    errors = [_error_in(f"<job {number}>") for number in range(tracebacks.KNOWN_MAX + 10)]
    texts = [tracebacks.formatted(error, error.__traceback__) for error in errors]
    assert all(f"<job {number}>" in text for number, text in enumerate(texts))
    assert len(tracebacks._known) <= tracebacks.KNOWN_MAX


def _error_in(file: str) -> BaseException:
    with pytest.raises(ZeroDivisionError) as caught:
        exec(compile("1 / 0", file, "exec"))
    return caught.value
