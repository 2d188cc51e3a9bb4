"""Finding the contestants: every module in `contestants/` with a list CONTESTANTS."""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import contestants
from benchmarks.contestant import Contestant


@dataclass(frozen=True)
class Entry:
    """A contestant and the module a child process imports to get it."""

    module: str
    contestant: type[Contestant]
    checkout: Path | None = None
    """Another checkout of TaskHarbor whose code the child runs; None: the one that is installed."""

    @property
    def label(self) -> str:
        """The name of its samples."""
        return self.contestant.name if self.checkout is None else other_label(self.contestant.name)


@dataclass
class Field:
    """All who can take part, and for each who cannot the reason."""

    entries: list[Entry] = field(default_factory=list)
    absent: dict[str, str] = field(default_factory=dict)


def other_label(name: str) -> str:
    return f"{name} (other checkout)"


def discover() -> Field:
    found = Field()
    for module in sorted(info.name for info in pkgutil.iter_modules(contestants.__path__)):
        if module.startswith("_"):
            continue
        try:
            found.entries += [Entry(module, contestant) for contestant in load(module)]
        except ModuleNotFoundError as error:
            if error.name is None or error.name.partition(".")[0] in ("benchmarks", "tools"):
                raise  # a mistake in the harness, not a package that is not there
            found.absent[module] = f"not installed: {error.name}"
        except ImportError as error:
            found.absent[module] = f"not usable: {error}"
    names = [entry.contestant.name for entry in found.entries]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"contestant names must be unique, these are not: {sorted(twice)}")
    return found


def load(module: str) -> list[type[Contestant]]:
    """The contestants of one file. A child imports no other, so that no peer weighs on its memory."""
    contents = importlib.import_module(f"benchmarks.contestants.{module}")
    listed: list[type[Contestant]] = contents.CONTESTANTS
    return listed


def pick(module: str, name: str) -> type[Contestant]:
    return next(contestant for contestant in load(module) if contestant.name == name)
