"""Bytecode is kept between the processes of a test run, also where PYTHONDONTWRITEBYTECODE is set.

A run starts hundreds of processes, and four of them collect every test. Without bytecode each compiles what it imports
again: that is half the time that a command takes, and more than half of a collection. Images of containers often set
the variable to leave no files beside the sources. A run leaves none there either: its bytecode goes into a folder of
pytest's cache.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path


def keep(folder: Path) -> None:
    """Keep bytecode in this folder, for this process and those that it starts, if it would not be kept at all."""
    if not sys.dont_write_bytecode:
        return
    # That of modules which tests have written themselves, in an earlier run, is never used again.
    shutil.rmtree(mirrored(folder, Path(tempfile.gettempdir())), ignore_errors=True)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = str(folder)
    sys.dont_write_bytecode = False
    sys.pycache_prefix = str(folder)


def mirrored(folder: Path, sources: Path) -> Path:
    """Where the bytecode of these sources is, below the folder."""
    return folder / sources.absolute().relative_to(sources.absolute().anchor)
