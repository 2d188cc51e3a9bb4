"""What a worker and a handler's process say to each other arrives whole, however the bytes are cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskharbor.drivers.base import Claimed
from taskharbor.function_refs import FunctionRef
from taskharbor.records import NewJob, Options, Progress
from taskharbor.rules.outcome import Failed
from taskharbor.rules.retry import ErrorInfo
from taskharbor.worker.exit_status import describe_exit
from taskharbor.worker.handlers.isolation.messages import (
    FRAME_MAX,
    Call,
    ChildEnqueued,
    Frames,
    Logged,
    ProgressReported,
    Raised,
    Ready,
    Returned,
    frame,
    read_from_process,
    read_to_process,
)

SAID = [
    Ready(),
    ProgressReported(1, Progress(0.5, "half")),
    ChildEnqueued(1, NewJob("id", "task", options=Options(retry=None, tags=("a",)))),
    ChildEnqueued(2, NewJob("id", "task", options=Options(timeout=3))),
    Returned(3, None),
    Returned(3, '{"x":1}'),
    Raised(4, Failed(ErrorInfo.of(KeyError("a")), "KeyError: 'a'", "Traceback …")),
    Logged(
        "name", 20, "text", 1.5, "path", 7, None, "main", 12, None, {"n": 1, "t": "x", "f": 0.5, "none": None}
    ),
]


@given(st.lists(st.sampled_from(SAID), max_size=6), st.lists(st.integers(1, 60), min_size=1, max_size=20))
def test_frames_are_cut_where_they_end(messages, pieces):
    stream = b"".join(map(frame, messages))
    frames, bodies = Frames(), []
    at = 0
    while at < len(stream):
        size = pieces[at % len(pieces)]
        bodies += frames.feed(stream[at : at + size])
        at += size
    assert [read_from_process(body) for body in bodies] == messages


def test_a_call_arrives_as_it_was_sent():
    claimed = Claimed("id", "task", '{"é":1}', "queue", 3, 4, 1, 2, 5, 6, options='{"timeout":3}')
    call = Call(1, FunctionRef("module", "function"), {"old": "new"}, claimed, 10, 11, None)
    [body] = Frames().feed(frame(call))
    assert read_to_process(body) == call


def test_what_is_no_frame_of_ours_is_refused():
    with pytest.raises(ValueError, match="is larger than"):
        Frames().feed((FRAME_MAX + 1).to_bytes(4, "big"))


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (0, "ended with exit code 0"),
        (3, "ended with exit code 3"),
        (-11, "was killed by SIGSEGV (signal 11)"),
        (-9, "was killed by SIGKILL (signal 9)"),
        (-63, "was killed by signal 63"),
        (-200, "was killed by signal 200"),
    ],
)
def test_exit_is_described_in_words(code, text):
    assert describe_exit(code) == text
