"""A fresh store for each measurement: a directory of its own, and what a server keeps for it elsewhere."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.contestant import Contestant


@contextmanager
def fresh_store(contestant: type[Contestant], parent: Path, *, prefix: str = "bench-") -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=parent, prefix=prefix) as created:
        directory = Path(created)
        contestant.create_store(directory)
        try:
            yield directory
        finally:
            contestant.remove_store(directory)
