"""The messages between a worker and a handler process: frames of msgpack over a socket pair, never pickle."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from taskharbor.drivers.base import Claimed
from taskharbor.function_refs import FunctionRef, MainModule
from taskharbor.records import NewJob, Progress, StepRecord, StopReason
from taskharbor.rules.outcome import Failed

LENGTH_BYTES = 4
FRAME_MAX = 64 * 1024 * 1024  # far more than the limits of payloads, results and texts add up to


class Message(Struct, frozen=True, tag=True):
    """A message; on the wire the name of its class says which."""


class CallMessage(Message, frozen=True):
    """A message about one call of a handler."""

    serial: int  # of the call: a late message of an earlier call is dropped


# -- to the process ------------------------------------------------------------------------------


class Init(Message, frozen=True):
    """How to set up the process like the worker's: its imports, hooks and log levels."""

    arguments: list[str]
    main: MainModule | None
    modules: list[str]
    start_hooks: list[FunctionRef]
    stop_hooks: list[FunctionRef]
    url: str
    levels: dict[str, int]  # of the worker's loggers


class Call(CallMessage, frozen=True):
    address: FunctionRef
    parameter_aliases: dict[str, str] | None
    claimed: Claimed
    lease_expires_at: int
    started_at: int
    deadline: int | None
    trace: dict[str, str] | None = None  # the context of the attempt's span
    is_row_missing: bool = False  # no store has a row for its steps


class AskToStop(CallMessage, frozen=True):
    """Ask the handler to stop; its context shows the reason."""

    reason: StopReason


class Cancel(CallMessage, frozen=True):
    """Cancel the handler, if it is async."""


class StepsRead(CallMessage, frozen=True):
    """The answer to `ReadSteps`."""

    steps: dict[str, StepRecord]


class StepWritten(CallMessage, frozen=True):
    """The answer to `WriteStep`. If the lease was lost, there is none, and the process is killed."""

    name: str


class Stop(Message, frozen=True):
    """Call the stop hooks and exit."""


ToProcess = Init | Call | AskToStop | Cancel | StepsRead | StepWritten | Stop


# -- from the process ----------------------------------------------------------------------------


class Ready(Message, frozen=True):
    """It has finished its imports and start hooks, and waits for calls."""


class CannotStart(Message, frozen=True):
    error: str


class Begun(CallMessage, frozen=True):
    """It has taken the call: if the process dies after this, the handler counts as crashed."""


class ProgressReported(CallMessage, frozen=True):
    progress: Progress


class ChildEnqueued(CallMessage, frozen=True):
    """A child that the handler enqueued through its context."""

    job: NewJob


class ReadSteps(CallMessage, frozen=True):
    """Ask for the job's durable steps."""


class WriteStep(CallMessage, frozen=True):
    name: str
    result: str


class FellAsleep(CallMessage, frozen=True):
    """The handler ended by `ctx.sleep`."""

    name: str
    seconds: float


class Stopped(CallMessage, frozen=True):
    """The handler ended by `ctx.raise_if_stopped`."""

    reason: StopReason


class Logged(Message, frozen=True):
    logger: str
    level: int
    message: str
    created: float
    path: str
    line: int
    function: str | None
    thread: str | None
    process: int | None
    traceback: str | None
    fields: dict[str, Any] | None


class Returned(CallMessage, frozen=True):
    result: str | None  # JSON


class Raised(CallMessage, frozen=True):
    failure: Failed


class NotFound(CallMessage, frozen=True):
    """The process could not find or call the handler."""

    error: str


FromProcess = (
    Ready
    | CannotStart
    | Begun
    | ProgressReported
    | ChildEnqueued
    | ReadSteps
    | WriteStep
    | FellAsleep
    | Stopped
    | Logged
    | Returned
    | Raised
    | NotFound
)

# -- frames --------------------------------------------------------------------------------------

read_to_process = msgspec.msgpack.Decoder(ToProcess).decode
read_from_process = msgspec.msgpack.Decoder(FromProcess).decode
_encoder = msgspec.msgpack.Encoder(enc_hook=str)  # the fields of a log line may have any type


def frame(message: ToProcess | FromProcess) -> bytes:
    body = _encoder.encode(message)
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


class Frames:
    """Splits a stream of bytes into the bodies of its frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        self._buffer += data
        bodies: list[bytes] = []
        begin = 0
        while len(self._buffer) - begin >= LENGTH_BYTES:
            body = begin + LENGTH_BYTES
            length = int.from_bytes(self._buffer[begin:body], "big")
            if length > FRAME_MAX:
                raise ValueError(f"a frame of {length:,} bytes is larger than {FRAME_MAX:,}")
            if len(self._buffer) < body + length:
                break
            bodies.append(bytes(self._buffer[body : body + length]))
            begin = body + length
        del self._buffer[:begin]
        return bodies
