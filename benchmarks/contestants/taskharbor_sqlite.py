"""TaskHarbor on SQLite, at its defaults."""

from __future__ import annotations

from pathlib import Path

from benchmarks.contestants._taskharbor import TaskHarbor


class TaskHarborSqlite(TaskHarbor):
    name = "taskharbor sqlite"
    store = "sqlite"
    durability_note = (
        "WAL, synchronous=FULL; kill -9 reruns the job after its lease, finished jobs and history are kept"
    )

    def setup(self, directory: Path) -> None:
        self.address = self.url(directory)
        super().setup(directory)

    def store_url(self) -> str:
        return self.address

    def url(self, directory: Path) -> str:
        return f"sqlite:///{directory / 'harbor.db'}"


CONTESTANTS = [TaskHarborSqlite]
