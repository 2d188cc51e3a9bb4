"""The warm process: `server.py DESCRIPTOR MODULE …` imports the modules, then forks a program for each request.

See `tests/launcher`. The descriptor is that of a listening socket.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

SIZE_BYTES = 8  # of the number that says how long a request is


class Program(NamedTuple):
    """What to run: the arguments of Python, and where."""

    arguments: list[str]
    folder: str
    environment: dict[str, str]


def main() -> None:
    # Neither the folder of this file nor what the test process has put on the path.
    path = [each for each in sys.path if each not in _python_path(os.environ)]
    _, number, *imported = sys.argv
    for name in imported:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # forks share these objects for as long as none of them is written to
    run(serve(socket.socket(fileno=int(number))), path)


def serve(listener: socket.socket) -> Program:
    """Take requests without end. It returns in the forks, each of which is the program of a request by then."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        caller, _ = listener.accept()
        if not os.fork():
            listener.close()
            return _forked(caller)
        caller.close()


def _forked(caller: socket.socket) -> Program:
    """Fork the program of a request; this process waits for its end and tells the caller."""
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    size, streams, _, _ = socket.recv_fds(caller, SIZE_BYTES, 3)
    request = caller.recv(int.from_bytes(size, "big"), socket.MSG_WAITALL)
    pid = os.fork()
    if pid:
        for each in streams:
            os.close(each)
        _wait(pid, caller)
        os._exit(0)
    caller.close()
    for number, each in enumerate(streams):
        os.dup2(each, number)
        os.close(each)
    return Program(*json.loads(request))


def _wait(pid: int, caller: socket.socket) -> None:
    """Wait for the end of the program; meanwhile send it the signals that the caller passes on."""
    ended = os.pidfd_open(pid)
    while ended not in select.select([ended, caller.fileno()], [], [])[0]:
        told = caller.recv(1)
        os.kill(pid, told[0] if told else signal.SIGKILL)
        if not told:  # the caller was killed
            break
    _, status = os.waitpid(pid, 0)
    with suppress(OSError):
        caller.send(str(os.waitstatus_to_exitcode(status)).encode())


def run(program: Program, path: list[str]) -> None:
    """Be the program, in a fork that has its streams already; `path` is where Python looks for what is installed."""
    os.chdir(program.folder)
    os.environ.clear()
    os.environ.update(program.environment)
    time.tzset()
    sys.stdin, sys.stdout = _stream(0, "r"), _stream(1, "w")
    sys.stderr = _stream(2, "w", buffering=1, errors="backslashreplace")
    sys.path[:] = [*_python_path(program.environment), *path]
    match program.arguments:
        case ["-P", "-m", module, *words]:
            sys.argv = [module, *words]
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        case ["-m", module, *words]:
            sys.argv = [module, *words]
            sys.path.insert(0, program.folder)
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        case ["-c", code, *words]:
            sys.argv = ["-c", *words]
            sys.path.insert(0, "")
            exec(compile(code, "<string>", "exec"), vars(sys.modules["__main__"]))
        case [script, *words] if not script.startswith("-"):
            sys.argv = [script, *words]
            sys.path.insert(0, str(Path(script).resolve().parent))
            runpy.run_path(script, run_name="__main__")
        case unknown:
            raise ValueError(f"expected -P, -m, -c or a script, not {unknown}")


def _stream(descriptor: int, mode: str, **options: Any) -> Any:
    return open(descriptor, mode, closefd=False, **options)


def _python_path(environment: Mapping[str, str]) -> list[str]:
    return [each for each in environment.get("PYTHONPATH", "").split(os.pathsep) if each]


if __name__ == "__main__":
    main()
