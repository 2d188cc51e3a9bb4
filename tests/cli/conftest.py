from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from taskharbor import Harbor, Worker, builtin_tasks
from taskharbor.cli import cli

COMMAND = [sys.executable, "-P", "-m", "taskharbor.cli"]


@dataclass
class CommandResult:
    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)

    @property
    def error(self) -> str:
        """The one line that an error is."""
        [line] = self.err.splitlines()
        assert line.startswith("Error: "), line
        assert "Traceback" not in self.out
        return line.removeprefix("Error: ")


Run = Callable[..., CommandResult]


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder of its own, no settings from outside, and none left behind."""
    for name in ("TASKHARBOR_APP", "TASKHARBOR_URL", "TASKHARBOR_HTTP_ALLOW"):
        monkeypatch.setenv(name, "")  # remembered, so that it is undone
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/harbor.db"


@pytest.fixture
def run(url: str) -> Run:
    """Run a command on the store; one that fails is an error of the test, unless a code is expected."""

    def run(*words: str, code: int = 0, store: str | None = url, stdin: str | None = None) -> CommandResult:
        words = (*words, "--url", store) if store is not None else words
        result = CliRunner().invoke(cli, list(words), prog_name="taskharbor", input=stdin)
        assert result.exit_code == code, result.stderr + result.stdout
        return CommandResult(result.exit_code, result.stdout, result.stderr)

    return run


@pytest.fixture
def empty(url: str) -> None:
    """The store is there, and holds nothing."""
    with Harbor(url) as harbor:
        harbor.migrate()


@pytest.fixture
def harbor(url: str) -> Iterator[Harbor]:
    with Harbor(url) as harbor:
        builtin_tasks.register(harbor)
        yield harbor


@pytest.fixture
def drain(harbor: Harbor) -> Callable[[], None]:
    return lambda: Worker(harbor).drain_sync()


def spawn(*words: str, **options: Any) -> subprocess.Popen[str]:
    pipes: dict[str, Any] = {
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "stdin": subprocess.DEVNULL,
    }
    return subprocess.Popen([*COMMAND, *words], text=True, **{**pipes, **options})


@pytest.fixture
def started() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start a command as a process; what is still running at the end is killed."""
    processes = []

    def start(*words: str, **options: Any) -> subprocess.Popen[str]:
        processes.append(spawn(*words, **options))
        return processes[-1]

    yield start
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.communicate()
