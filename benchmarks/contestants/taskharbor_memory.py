"""TaskHarbor in memory: what the client, the worker and the event loop cost without a disk."""

from __future__ import annotations

from pathlib import Path

from benchmarks.contestant import Durability
from benchmarks.contestants._taskharbor import TaskHarbor


class TaskHarborMemory(TaskHarbor):
    name = "taskharbor memory"
    store = "memory"
    durability = Durability.MEMORY
    durability_note = "none: the store is gone with its process"
    separate_worker = False

    def url(self, directory: Path) -> str:
        return "memory://"


CONTESTANTS = [TaskHarborMemory]
