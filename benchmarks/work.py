"""Jobs whose handler takes time: of which kind the handler is, and how long it sleeps."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, Self, get_args

Kind = Literal["async", "sync", "process"]
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True)
class Work:
    """`async` sleeps on the loop, `sync` in a thread, `process` in a process of its own."""

    kind: Kind
    milliseconds: float

    @property
    def seconds(self) -> float:
        return self.milliseconds / 1_000

    def __str__(self) -> str:
        return f"{self.kind} {self.milliseconds:g} ms"

    @classmethod
    def parse(cls, text: str) -> Self:
        found = re.fullmatch(r"(async|sync|process) ([\d.]+) ms", text)
        if found is None:
            raise ValueError(f"work is written like 'async 10 ms', not {text!r}")
        return cls(found[1], float(found[2]))  # type: ignore[arg-type]


PLAIN = Work("async", 0)
PLAIN_SYNC = Work("sync", 0)
