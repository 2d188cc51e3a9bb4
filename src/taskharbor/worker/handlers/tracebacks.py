"""Tracebacks as text: what `traceback.format_exception` says, with each place of the code formatted once.

Most of what a failing job costs is the text of its traceback, and the same places fail again and again.
"""

from __future__ import annotations

import traceback
from types import CodeType, TracebackType

FRAMES_MAX = 50  # the innermost ones
KNOWN_MAX = 1_024  # places of the code whose text is remembered
# The standard library looks at the frames of these once more, for what the author may have meant, or at other errors.
_WITH_MORE = (NameError, AttributeError, ImportError, SyntaxError, BaseExceptionGroup)

# By code object and instruction. Code objects of different files may be equal, so each is known by its identity, and is
# kept so that no other one can have it.
_known: dict[tuple[int, int], tuple[str, CodeType]] = {}


def formatted(error: BaseException, trace: TracebackType | None) -> str:
    """Return the text of an error and its frames from this one on, as the standard library formats it."""
    return _formatted_alone(error, trace) or "".join(
        traceback.format_exception(type(error), error, trace, limit=-FRAMES_MAX)
    )


def _formatted_alone(error: BaseException, trace: TracebackType | None) -> str | None:
    """The same for an error that has no other one behind it; None where there is more to say than line by line."""
    context = None if error.__suppress_context__ else error.__context__
    if trace is None or error.__cause__ or context or isinstance(error, _WITH_MORE):
        return None
    parts = ["Traceback (most recent call last):\n"]
    code, line = None, 0
    while trace is not None:
        if trace.tb_frame.f_code is code and trace.tb_lineno == line:
            return None  # a function that calls itself: the standard library counts such frames
        code, line = trace.tb_frame.f_code, trace.tb_lineno
        text, _ = _known.get((id(code), trace.tb_lasti)) or _frame(code, trace)
        parts.append(text)
        trace = trace.tb_next
    if len(parts) > FRAMES_MAX:
        return None
    parts += traceback.format_exception_only(type(error), error)
    return "".join(parts)


def _frame(code: CodeType, trace: TracebackType) -> tuple[str, CodeType]:
    found = "".join(traceback.extract_tb(trace, limit=1).format()), code
    if len(_known) >= KNOWN_MAX:  # code that is made anew for each job
        _known.clear()
    _known[id(code), trace.tb_lasti] = found
    return found
