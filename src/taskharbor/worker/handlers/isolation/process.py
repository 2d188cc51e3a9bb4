"""One handler process, as its worker sees it."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from msgspec import DecodeError

from taskharbor.records import Reason, StopReason
from taskharbor.rules.outcome import Crashed, Failed, HandedBack, Slept, Succeeded, Unrunnable
from taskharbor.telemetry.logs import log_line
from taskharbor.worker.exit_status import describe_exit
from taskharbor.worker.handlers.isolation.messages import (
    AskToStop,
    Begun,
    Call,
    Cancel,
    CannotStart,
    ChildEnqueued,
    FellAsleep,
    Frames,
    FromProcess,
    Init,
    Logged,
    NotFound,
    ProgressReported,
    Raised,
    ReadSteps,
    Ready,
    Returned,
    StepsRead,
    StepWritten,
    Stop,
    Stopped,
    ToProcess,
    WriteStep,
    frame,
    read_from_process,
)

if TYPE_CHECKING:
    from taskharbor.worker.pipeline.execution import Execution

logger = logging.getLogger("taskharbor.worker")

LAST_MESSAGES_SECONDS = 1.0  # for the last messages of a dead process to arrive
# First of all it takes over the worker's import path.
_BOOT = (
    "import os, sys; sys.path[:] = os.environ.pop('TASKHARBOR_PATH').split(os.pathsep); "
    "from taskharbor.worker.handlers.isolation.child import main; main()"
)

Ended = Succeeded | Failed | Crashed | Slept | Unrunnable | HandedBack | Stopped


class ActiveCall:
    """The call that a process is busy with."""

    __slots__ = ("ask_steps", "begun", "done", "execution", "serial")

    def __init__(
        self,
        serial: int,
        execution: Execution,
        ask_steps: Callable[[ReadSteps | WriteStep], None],
        done: Callable[[Ended], None],
    ) -> None:
        self.serial = serial
        self.begun = False
        self.execution = execution
        self.ask_steps = ask_steps
        self.done = done


class IsolatedProcess(asyncio.Protocol):
    """A process with its own process group: the whole group is dead before its call ends."""

    def __init__(self, on_gone: Callable[[IsolatedProcess], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_gone = on_gone
        self._frames = Frames()
        self._transport: asyncio.WriteTransport | None = None
        self._call: ActiveCall | None = None
        self._lock = threading.Lock()
        self._reaped = False
        self._exit_code: int | None = None
        self._disconnected = False  # all its messages have arrived
        self._has_ended = False
        self._started: asyncio.Future[str | None] = self._loop.create_future()  # None, or the startup error
        self.calls = 0  # since its start
        self.is_ending = False  # it was killed or asked to stop
        ours, theirs = socket.socketpair()
        try:
            # Python uses vfork or posix_spawn here, so the threads of the worker are not forked.
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    *subprocess._args_from_interpreter_flags(),  # type: ignore[attr-defined]
                    "-P",
                    "-c",
                    _BOOT,
                    str(theirs.fileno()),
                ],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                process_group=0,
                env=os.environ | {"TASKHARBOR_PATH": os.pathsep.join(map(str, sys.path))},
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self._socket = ours
        self.group = self._process.pid
        threading.Thread(target=self._reap, name="taskharbor-reaper", daemon=True).start()

    # -- start --

    async def start(self, init: Init) -> str | None:
        """Wait until it is ready for calls; return None, or why it could not start."""
        await self._loop.create_unix_connection(lambda: self, sock=self._socket)
        self._send(init)
        return await asyncio.shield(self._started)

    # -- calls --

    def call(self, call: Call, active: ActiveCall) -> None:
        self.calls += 1
        if self._has_ended:  # it died since it was taken
            self._loop.call_soon(active.done, HandedBack())
            return
        self._call = active
        self._send(call)

    @property
    def serial(self) -> int | None:
        """The serial of the call that it is busy with."""
        return None if self._call is None else self._call.serial

    def ask_to_stop(self, reason: StopReason) -> None:
        if self._call is not None:
            self._send(AskToStop(self._call.serial, reason))

    def cancel(self) -> None:
        if self._call is not None:
            self._send(Cancel(self._call.serial))

    def answer(self, answer: StepsRead | StepWritten) -> None:
        if answer.serial == self.serial:
            self._send(answer)

    # -- end --

    def stop(self) -> None:
        """Ask it to call its stop hooks and exit."""
        self.is_ending = True
        self._send(Stop())

    def kill(self) -> None:
        """Kill it and everything it has started."""
        self.is_ending = True
        with self._lock:
            if not self._reaped:
                kill_group(self.group)
                with suppress(ProcessLookupError):
                    os.kill(self.group, signal.SIGKILL)  # in case it left its group

    def kill_call(self, serial: int | None) -> None:
        """Kill it if it is still busy with that call."""
        if serial is not None and self.serial == serial:
            self.kill()

    def _reap(self) -> None:
        """Wait for its exit in a thread: this works on every loop, and leaves no zombie when the loop is gone."""
        if hasattr(os, "waitid"):
            # Until it is reaped no other process can have its pid, so killing its group hits no stranger.
            with suppress(ChildProcessError):  # the program ignores SIGCHLD, so the system reaps its children
                os.waitid(os.P_PID, self.group, os.WEXITED | os.WNOWAIT)
        else:
            self._process.wait()
        with self._lock:
            kill_group(self.group)
            self._exit_code = self._process.wait()
            self._reaped = True
        try:
            self._loop.call_soon_threadsafe(self._died)
        except RuntimeError:  # the loop is closed
            self._socket.close()

    def _died(self) -> None:
        if self._disconnected or self._transport is None:
            self._end()
        else:  # its last messages may still arrive
            self._loop.call_later(LAST_MESSAGES_SECONDS, self._end)

    def connection_lost(self, exc: Exception | None) -> None:
        self._disconnected = True
        if self._reaped:
            self._end()
        else:
            self.kill()  # no call can reach it any more

    def _end(self) -> None:
        if self._has_ended:
            return
        self._has_ended = True
        if self._transport is not None:
            self._transport.close()
        else:
            self._socket.close()
        how = describe_exit(self._exit_code or 0)
        if not self._started.done():
            self._started.set_result(f"it {how} before it was ready")
        self._on_gone(self)  # first, so that the pool gives it to no other call
        begun = self._call is not None and self._call.begun
        self._ended(Crashed(f"lost: its process {how}") if begun else HandedBack())

    # -- messages from the process --

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)  # uvloop's do not inherit from it

    def data_received(self, data: bytes) -> None:
        try:
            for body in self._frames.feed(data):
                self._receive(read_from_process(body))
        except (ValueError, DecodeError) as error:
            log_line(
                logger,
                logging.ERROR,
                "unexpected message from a handler process; killing it: {error}",
                {"process": self.group, "error": str(error)},
            )
            self.kill()

    def _receive(self, message: FromProcess) -> None:
        match message:
            case Logged():
                _log(message)
            case Ready():
                if not self._started.done():
                    self._started.set_result(None)
            case CannotStart(error):
                if not self._started.done():
                    self._started.set_result(error)
            case _ if self._call is None or message.serial != self._call.serial:
                pass  # of an earlier call, from a thread that its handler has left running
            case Begun():
                self._call.begun = True
            case ProgressReported(_, progress):
                self._call.execution.report(progress)
            case ChildEnqueued(_, job):
                self._call.execution.keep_child(job)
            case ReadSteps() | WriteStep():
                self._call.ask_steps(message)
            case FellAsleep(_, name, seconds):
                self._ended(Slept(name, seconds))
            case Stopped():
                self._ended(message)
            case Returned(_, result):
                self._ended(Succeeded(result))
            case Raised(_, failure):
                self._ended(failure)
            case NotFound(_, error):
                self._ended(Unrunnable(Reason.UNKNOWN_TASK, f"its process cannot execute it: {error}"))

    def _ended(self, ended: Ended) -> None:
        call, self._call = self._call, None
        if call is not None:
            call.done(ended)

    def _send(self, message: ToProcess) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(frame(message))


def kill_group(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):  # macOS raises the latter for a group of zombies
        pass


def _log(logged: Logged) -> None:
    """Log the line as if it came from this process."""
    target = logging.getLogger(logged.logger)
    if not target.isEnabledFor(logged.level):
        return
    about: dict[str, Any] = {
        "name": logged.logger,
        "levelno": logged.level,
        "levelname": logging.getLevelName(logged.level),
        "msg": logged.message,
        "args": (),
        "created": logged.created,
        "msecs": logged.created % 1 * 1000,
        "pathname": logged.path,
        "filename": os.path.basename(logged.path),
        "module": Path(logged.path).stem,
        "lineno": logged.line,
        "funcName": logged.function,
        "threadName": logged.thread,
        "process": logged.process,
        "exc_text": logged.traceback,
    }
    if logged.fields is not None:
        about["fields"] = logged.fields
    target.handle(logging.makeLogRecord(about))
