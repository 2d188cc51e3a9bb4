"""Doing what a page says: its Python blocks and its commands, in their order, in one folder."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import redirect_stdout
from functools import cache
from io import StringIO
from pathlib import Path
from types import ModuleType
from typing import Any

from taskharbor import Harbor
from tests import launcher
from tests.docs.markdown import Block

COMMAND_SECONDS = 240
_MARKER = re.compile(r"^@@(\d+) (\d+)$", re.MULTILINE)


class PageSession:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._module: ModuleType | None = None
        self._modules: list[ModuleType] = []
        self._printed = ""

    def do(self, block: Block) -> None:
        if block.language == "python":
            file, longer = block.mark("file"), block.mark("append")
            if file is not None:
                (self._folder / file).write_text(block.text)
            elif longer is not None:
                with (self._folder / longer).open("a") as written:
                    written.write(block.text)
            else:
                self._run_python(block)
        elif block.language == "console" and "no-run" not in block.marks:
            self._run_commands(block)
        elif block.language == "sql":
            self._run_sql(block)
        elif block.language == "output":
            assert_output(block.text.splitlines(), self._printed, block.place)

    def close(self) -> None:
        own = [module for module in sys.modules.values() if _is_in(self._folder, module)]
        for module in (*self._modules, *own):
            for value in list(vars(module).values()):
                if isinstance(value, Harbor):
                    value.close()
            sys.modules.pop(module.__name__, None)

    # -- Python --

    def _run_python(self, block: Block) -> None:
        if "continues" not in block.marks or self._module is None:
            # Registered, as an imported module is: annotations are resolved by looking there.
            name = f"page_{block.page.stem}_{block.line}".lower()
            self._module = sys.modules[name] = ModuleType(name)
            self._modules.append(self._module)
        # Blank lines before it, so that a traceback names the line of the page.
        code = compile("\n" * (block.line - 1) + block.text, str(block.page), "exec")
        printed = StringIO()
        with redirect_stdout(printed):
            exec(code, vars(self._module))
        self._printed = printed.getvalue()

    # -- SQL --

    def _run_sql(self, block: Block) -> None:
        """In the page's database; what the last statement gave counts as printed."""
        import psycopg

        with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as connection:
            cursor = connection.execute(block.text.encode())
            while cursor.nextset():
                pass
            self._printed = "".join(f"{row[0]}\n" for row in cursor) if cursor.description else ""

    # -- commands --

    def _run_commands(self, block: Block) -> None:
        steps = _steps(block.text)
        script = "".join(f'{command}\necho "@@{n} $?"\n' for n, (command, _) in enumerate(steps))
        done = subprocess.run(
            ["sh"],
            input=script,
            cwd=self._folder,
            env=_environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=COMMAND_SECONDS,
            check=False,
        )
        start = 0
        for marker, (command, expected) in zip(_MARKER.finditer(done.stdout), steps, strict=True):
            answer = done.stdout[start : marker.start()]
            start = marker.end() + 1
            fails = expected[:1] and expected[0].startswith("Error: ")
            assert (marker[2] != "0") == bool(fails), f"{block.place}: {command} answered {answer}"
            if expected:
                assert_output(expected, answer, f"{block.place}: {command}")


def assert_output(expected: list[str], answer: str, place: str) -> None:
    """`…` stands for any text within a line, and on a line of its own for any lines; blanks for any blanks."""
    pattern = "".join(
        r"(?:.*\n)*?"
        if line.strip() == "…"
        else r"[^\n]*?".join(map(re.escape, re.split(" ?… ?", _squeezed(line)))) + r"\n"
        for line in expected
    )
    found = "".join(f"{_squeezed(line)}\n" for line in answer.splitlines())
    assert re.fullmatch(pattern, found), f"{place}\n\nexpected:\n{chr(10).join(expected)}\n\nfound:\n{answer}"


def _squeezed(line: str) -> str:
    return re.sub(r" +", " ", line.rstrip())


def _steps(text: str) -> list[tuple[str, list[str]]]:
    """Each command with the output that follows it."""
    steps: list[tuple[str, list[str]]] = []
    continued = False
    for line in text.splitlines():
        if continued:
            steps[-1] = (f"{steps[-1][0]}\n{line}", [])
        elif line.startswith("$ "):
            steps.append((line[2:], []))
        else:
            steps[-1][1].append(line)
            continue
        continued = line.endswith("\\")
    return steps


def _environment() -> Mapping[str, Any]:
    own = {name: value for name, value in os.environ.items() if not name.startswith("TASKHARBOR_")}
    return {
        **own,
        "PATH": os.pathsep.join([str(_commands()), str(Path(sys.executable).parent), own.get("PATH", "")]),
        "COLUMNS": "120",
    }


@cache
def _commands() -> Path:
    """A folder with the commands that pages use most, each run by a warm process."""
    folder = Path(tempfile.mkdtemp(prefix="commands-"))
    own, warm, django = (
        shlex.join(words) for words in ([sys.executable], launcher.python(), launcher.python(launcher.DJANGO))
    )
    commands = {
        "taskharbor": f'exec {warm} -P -m taskharbor.cli "$@"',
        "python": f'case "$1" in manage.py) exec {django} "$@";; *) exec {own} "$@";; esac',
    }
    for name, line in commands.items():
        (folder / name).write_text(f"#!/bin/sh\n{line}\n")
        (folder / name).chmod(0o755)
    return folder


def _is_in(folder: Path, module: ModuleType) -> bool:
    file = getattr(module, "__file__", None)
    return file is not None and Path(file).is_relative_to(folder)
