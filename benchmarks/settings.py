"""How large a run is."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

CHECKOUT_VARIABLE = "BENCH_CHECKOUT"
"""The folder that a child must have imported TaskHarbor from; not set: wherever it is installed."""


@dataclass(frozen=True)
class Settings:
    """Sizes of one run; passed to every child process as JSON."""

    rounds: int = 5
    jobs: int = 20_000
    """Jobs in a drain and in a bulk enqueue. One-by-one enqueues take a quarter of it."""
    single_jobs_max: int | None = None
    callers: int = 50
    probes: int = 200
    memory_jobs: int = 100_000
    poll_seconds: float = 0.01
    """How often a peer that polls looks for work; the same for all of them. Idle CPU shows what it costs."""
    timeout_seconds: float = 600.0
    """A measurement that takes longer has failed."""

    @classmethod
    def quick(cls) -> Settings:
        return cls(rounds=1, jobs=2_000, probes=30, memory_jobs=10_000)

    @property
    def single_jobs(self) -> int:
        return max(self.callers, min(self.jobs // 4, self.single_jobs_max or self.jobs))

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)
