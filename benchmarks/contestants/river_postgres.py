"""River on Go: 10,000 goroutines, the shortest fetch cooldown that it allows, `InsertManyFast` for bulk."""

from __future__ import annotations

import re

from benchmarks import foreign
from benchmarks.contestants._foreign import ForeignContestant

foreign.require(foreign.RIVER)


class River(ForeignContestant):
    name = "river"
    program = (str(foreign.RIVER),)
    unlogged_without_jobs = ("river_leader", "river_client", "river_client_queue")
    durability_note = (
        "Go, MaxWorkers 10,000, FetchCooldown 1 ms; kill -9 reruns the job after an hour, "
        "finished jobs are kept for a day"
    )

    @classmethod
    def version(cls) -> str:
        listed = (foreign.HERE / "river/go.mod").read_text()
        found = re.search(r"riverqueue/river v(\S+)", listed)
        return found[1] if found else "unknown"


CONTESTANTS = [River]
