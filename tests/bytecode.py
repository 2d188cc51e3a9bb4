"""Bytecode is kept between the processes of a test run, also where PYTHONDONTWRITEBYTECODE is set.

A run starts hundreds of processes, and four of them collect every test. Without bytecode each compiles what it imports
again: that is half the time that a command takes, and more than half of a collection. Images of containers often set
the variable to leave no files beside the sources. A run leaves none there either: its bytecode goes into a folder of
pytest's cache.

In a fresh checkout there is no bytecode yet. The test processes then share the work: each imports some of the test
modules before it collects all of them.
"""

from __future__ import annotations

import importlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[1]


def keep(folder: Path) -> None:
    """Keep bytecode in this folder, for this process and those that it starts, if it would not be kept at all."""
    if not sys.dont_write_bytecode:
        return
    # That of modules which tests have written themselves, in an earlier run, is never used again.
    remove(mirrored(folder, Path(tempfile.gettempdir())), but=mirrored(folder, PROJECT))
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = str(folder)
    sys.dont_write_bytecode = False
    sys.pycache_prefix = str(folder)


def mirrored(folder: Path, sources: Path) -> Path:
    """Where the bytecode of these sources is, below the folder."""
    return folder / sources.absolute().relative_to(sources.absolute().anchor)


def remove(folder: Path, *, but: Path) -> None:
    """Remove what is in a folder, except this one, which may be deeper inside it."""
    if folder == but or not folder.is_dir():
        return
    for each in folder.iterdir():
        if but.is_relative_to(each):
            remove(each, but=but)
        else:
            shutil.rmtree(each, ignore_errors=True)


def import_a_share(given: Iterable[str]) -> None:
    """Import some of the modules that these arguments of pytest name, so that a test process compiles its share."""
    number, count = (os.environ.get(f"PYTEST_XDIST_WORKER{end}", "") for end in ("", "_COUNT"))
    if not count:
        return
    for file in modules(given)[int(number.removeprefix("gw")) :: int(count)]:
        # What cannot be imported is imported again when it is collected, and reported then.
        with suppress(Exception, pytest.skip.Exception):
            importlib.import_module(".".join(file.relative_to(PROJECT).with_suffix("").parts))


def modules(given: Iterable[str]) -> Sequence[Path]:
    """The files of tests that these arguments name: a file, a folder, or a test in a file."""
    paths = [PROJECT / each.partition("::")[0] for each in given]
    files = {file for path in paths for file in ([path] if path.is_file() else path.rglob("test_*.py"))}
    return sorted(file for file in files if file.is_relative_to(PROJECT / "tests"))
