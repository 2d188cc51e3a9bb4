"""pg-boss on Node.js: four local workers that fetch up to 2,000 jobs each, woken by LISTEN/NOTIFY."""

from __future__ import annotations

from benchmarks import foreign
from benchmarks.contestants._foreign import ForeignContestant

foreign.require(foreign.NODE)


class PgBoss(ForeignContestant):
    name = "pg-boss"
    program = (str(foreign.NODE), str(foreign.NODE_FOLDER / "pg_boss.mjs"))
    durability_note = (
        "Node.js, batchSize 2,000, 4 workers, LISTEN/NOTIFY; kill -9 reruns the job after its expiry (15 minutes), "
        "finished jobs are kept for 7 days"
    )

    @classmethod
    def version(cls) -> str:
        return foreign.node_version("pg-boss")


CONTESTANTS = [PgBoss]
