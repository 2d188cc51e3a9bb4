"""graphile-worker on Node.js, with the settings of its performance page, and tuned further for no-op jobs.

The preset: 24 jobs at once, a local queue of 500, completions batched. Tuned: 1,000 jobs at once,
a local queue of 2,000.
"""

from __future__ import annotations

from benchmarks import foreign
from benchmarks.contestants._foreign import ForeignContestant

foreign.require(foreign.NODE)


class GraphileWorker(ForeignContestant):
    name = "graphile-worker"
    program = (str(foreign.NODE), str(foreign.NODE_FOLDER / "graphile.mjs"))
    variant = "preset"
    durability_note = (
        "Node.js, 24 jobs at once, localQueue 500, batched completions; kill -9 reruns the job after 4 hours, "
        "finished jobs are deleted"
    )

    @classmethod
    def version(cls) -> str:
        return foreign.node_version("graphile-worker")


class TunedGraphileWorker(GraphileWorker):
    name = "graphile-worker tuned"
    variant = "tuned"
    durability_note = "the same with 1,000 jobs at once, localQueue 2,000 and a pool of 40"


CONTESTANTS = [GraphileWorker, TunedGraphileWorker]
