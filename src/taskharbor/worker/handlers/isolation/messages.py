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

# -- to the process ------------------------------------------------------------------------------


class Init(Struct, frozen=True, tag=True):
    """How to set up the process like the worker's: its imports, hooks and log levels."""

    arguments: list[str]
    main: MainModule | None
    modules: list[str]
    start_hooks: list[FunctionRef]
    stop_hooks: list[FunctionRef]
    url: str
    levels: dict[str, int]  # of the worker's loggers


class Call(Struct, frozen=True, tag=True):
    serial: int  # marks the messages of this call, so that late ones of an earlier call are dropped
    address: FunctionRef
    parameter_aliases: dict[str, str] | None
    claimed: Claimed
    lease_expires_at: int
    started_at: int
    deadline: int | None


class AskToStop(Struct, frozen=True, tag=True):
    """Ask the handler to stop; its context shows the reason."""

    serial: int
    reason: StopReason


class Cancel(Struct, frozen=True, tag=True):
    """Cancel the handler, if it is async."""

    serial: int


class StepsRead(Struct, frozen=True, tag=True):
    """The answer to `ReadSteps`."""

    serial: int
    steps: dict[str, StepRecord]


class StepWritten(Struct, frozen=True, tag=True):
    """The answer to `WriteStep`. If the lease was lost, there is none, and the process is killed."""

    serial: int
    name: str


class Stop(Struct, frozen=True, tag=True):
    """Call the stop hooks and exit."""


ToProcess = Init | Call | AskToStop | Cancel | StepsRead | StepWritten | Stop


# -- from the process ----------------------------------------------------------------------------


class Ready(Struct, frozen=True, tag=True):
    """It has finished its imports and start hooks, and waits for calls."""


class CannotStart(Struct, frozen=True, tag=True):
    error: str


class Begun(Struct, frozen=True, tag=True):
    """It has taken the call: if the process dies after this, the handler counts as crashed."""

    serial: int


class ProgressReported(Struct, frozen=True, tag=True):
    serial: int
    progress: Progress


class ChildEnqueued(Struct, frozen=True, tag=True):
    """A child that the handler enqueued through its context."""

    serial: int
    job: NewJob


class ReadSteps(Struct, frozen=True, tag=True):
    """Ask for the job's durable steps."""

    serial: int


class WriteStep(Struct, frozen=True, tag=True):
    serial: int
    name: str
    result: str


class FellAsleep(Struct, frozen=True, tag=True):
    """The handler ended by `ctx.sleep`."""

    serial: int
    name: str
    seconds: float


class Stopped(Struct, frozen=True, tag=True):
    """The handler ended by `ctx.raise_if_stopped`."""

    serial: int
    reason: StopReason


class Logged(Struct, frozen=True, tag=True):
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


class Returned(Struct, frozen=True, tag=True):
    serial: int
    result: str | None  # JSON


class Raised(Struct, frozen=True, tag=True):
    serial: int
    failure: Failed


class NotFound(Struct, frozen=True, tag=True):
    """The process could not find or call the handler."""

    serial: int
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
