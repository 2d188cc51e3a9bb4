"""One handler's process, as its worker sees it: started, called, marked, killed, and known to be gone."""

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
from typing import Any, cast

from msgspec import DecodeError

from taskharbor.records import Reason, StopReason
from taskharbor.rules.outcome import Crashed, Failed, HandedBack, Slept, Succeeded, Unrunnable
from taskharbor.telemetry.logs import log_line
from taskharbor.worker.handlers.isolation.messages import (
    AskSteps,
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
    KeepStep,
    Logged,
    NotFound,
    ProgressReported,
    Raised,
    Ready,
    Returned,
    StepKept,
    StepsFound,
    Stop,
    Stopped,
    ToProcess,
    frame,
    read_from_process,
)

logger = logging.getLogger("taskharbor.worker")

LAST_WORDS_SECONDS = 1.0  # how long what a dead process has sent may take to arrive
# Before anything else, it imports from where the worker does.
_BOOT = (
    "import os, sys; sys.path[:] = os.environ.pop('TASKHARBOR_PATH').split(os.pathsep); "
    "from taskharbor.worker.handlers.isolation.child import main; main()"
)

Ended = Succeeded | Failed | Crashed | Slept | Unrunnable | HandedBack | Stopped


class CallUnderWay:
    """One call, and whom to tell of what comes of it."""

    __slots__ = ("asked", "begot", "begun", "done", "noted", "serial")

    def __init__(
        self,
        serial: int,
        noted: Callable[[ProgressReported], None],
        begot: Callable[[ChildEnqueued], None],
        asked: Callable[[AskSteps | KeepStep], None],
        done: Callable[[Ended], None],
    ) -> None:
        self.serial = serial
        self.begun = False
        self.noted = noted
        self.begot = begot
        self.asked = asked
        self.done = done


class IsolatedProcess(asyncio.Protocol):
    """It has a process group of its own, which is killed as a whole and known to be dead before its end is told."""

    def __init__(self, gone: Callable[[IsolatedProcess], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._gone = gone
        self._frames = Frames()
        self._transport: asyncio.WriteTransport | None = None
        self._call: CallUnderWay | None = None
        self._lock = threading.Lock()
        self._reaped = False
        self._exit_code: int | None = None
        self._silent = False  # it has said all that it ever will
        self._over = False
        self._started: asyncio.Future[str | None] = self._loop.create_future()  # None, or why it could not
        self.calls = 0  # ever
        self.is_doomed = False  # it was killed, or told to stop
        ours, theirs = socket.socketpair()
        try:
            # In the loop's own thread, and without a fork of our threads: Python spawns, then executes.
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
        threading.Thread(target=self._await_its_end, name="taskharbor-reaper", daemon=True).start()

    # -- its beginning --

    async def start(self, welcome: Init) -> str | None:
        """Until it waits for calls; otherwise why it does not."""
        await self._loop.create_unix_connection(lambda: self, sock=self._socket)
        self._send(welcome)
        return await asyncio.shield(self._started)

    # -- calls --

    def call(self, call: Call, under_way: CallUnderWay) -> None:
        self.calls += 1
        if self._over:  # it died since it was taken
            self._loop.call_soon(under_way.done, HandedBack())
            return
        self._call = under_way
        self._send(call)

    @property
    def serial(self) -> int | None:
        """Of the call that it is busy with."""
        return None if self._call is None else self._call.serial

    def ask_to_stop(self, reason: StopReason) -> None:
        if self._call is not None:
            self._send(AskToStop(self._call.serial, reason))

    def cancel(self) -> None:
        if self._call is not None:
            self._send(Cancel(self._call.serial))

    def answer(self, answer: StepsFound | StepKept) -> None:
        if answer.serial == self.serial:
            self._send(answer)

    # -- its end --

    def stop(self) -> None:
        """Let it end by itself."""
        self.is_doomed = True
        self._send(Stop())

    def kill(self) -> None:
        """Kill it, and whatever it has started."""
        self.is_doomed = True
        with self._lock:
            if not self._reaped:
                kill_group(self.group)
                with suppress(ProcessLookupError):
                    os.kill(self.group, signal.SIGKILL)  # should it have left its group

    def kill_call(self, serial: int | None) -> None:
        """Kill it if it is still busy with that call."""
        if serial is not None and self.serial == serial:
            self.kill()

    def _await_its_end(self) -> None:
        """In a thread of its own, so that it works on every loop, and no zombie is left when the loop is gone."""
        if hasattr(os, "waitid"):
            # Not reaped yet, its number cannot be another's: what it leaves behind is killed by it safely.
            with suppress(ChildProcessError):  # somebody ignores SIGCHLD, and with it every child
                os.waitid(os.P_PID, self.group, os.WEXITED | os.WNOWAIT)
        else:
            self._process.wait()
        with self._lock:
            kill_group(self.group)
            self._exit_code = self._process.wait()
            self._reaped = True
        try:
            self._loop.call_soon_threadsafe(self._died)
        except RuntimeError:  # the loop is gone: nobody waits for it
            self._socket.close()

    def _died(self) -> None:
        if self._silent or self._transport is None:
            self._end()
        else:  # its last words are still on their way
            self._loop.call_later(LAST_WORDS_SECONDS, self._end)

    def connection_lost(self, exc: Exception | None) -> None:
        self._silent = True
        if self._reaped:
            self._end()
        else:
            self.kill()  # it cannot be talked to any more

    def _end(self) -> None:
        if self._over:
            return
        self._over = True
        if self._transport is not None:
            self._transport.close()
        else:
            self._socket.close()
        how = describe_exit(self._exit_code or 0)
        if not self._started.done():
            self._started.set_result(f"it {how} before it was ready")
        self._gone(self)  # first: nobody shall be given it again
        begun = self._call is not None and self._call.begun
        self._ended(Crashed(f"lost: its process {how}") if begun else HandedBack())

    # -- what it says --

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)  # uvloop's do not inherit from it

    def data_received(self, data: bytes) -> None:
        try:
            for body in self._frames.feed(data):
                self._heed(read_from_process(body))
        except (ValueError, DecodeError) as error:
            log_line(
                logger,
                logging.ERROR,
                "a handler's process sent what cannot be read, and is killed: {error}",
                {"process": self.group, "error": str(error)},
            )
            self.kill()

    def _heed(self, message: FromProcess) -> None:
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
                pass  # of a call that is over: a thread that its handler has left behind
            case Begun():
                self._call.begun = True
            case ProgressReported():
                self._call.noted(message)
            case ChildEnqueued():
                self._call.begot(message)
            case AskSteps() | KeepStep():
                self._call.asked(message)
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
    except (ProcessLookupError, PermissionError):  # macOS says the latter of a group of zombies
        pass


def describe_exit(code: int) -> str:
    """`was killed by SIGSEGV (signal 11)`, `ended with exit code 3`"""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        return f"was killed by signal {-code}"
    return f"was killed by {name} (signal {-code})"


def _log(logged: Logged) -> None:
    """As if it had been logged here."""
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
