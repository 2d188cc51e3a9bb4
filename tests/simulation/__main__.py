"""`python -m tests.simulation --seed N` replays one seed; `--seconds S` looks for one that fails;
`--planted` looks for a seed that finds each planted bug, and writes them down for the tests to begin with.

With `--fleet` the worlds have supervisors; with `--world` they are of recurring jobs, workflows or durable steps.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
import time

from tests.simulation.fleet import FleetWorld
from tests.simulation.search import search_all
from tests.simulation.stories import KINDS
from tests.simulation.world import World, _bury_all, _seeded, simulate


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="replay this one, and show what happened")
    parser.add_argument("--first", type=int, help="begin here; by default anywhere")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to look")
    parser.add_argument("--fleet", action="store_true", help="worlds with supervisors")
    parser.add_argument("--world", choices=KINDS, help="worlds of this kind")
    parser.add_argument("--planted", action="store_true", help="seeds that find the planted bugs")
    asked = parser.parse_args()
    if asked.planted:
        return search_planted()
    kind = KINDS[asked.world] if asked.world else FleetWorld if asked.fleet else World
    if asked.seed is not None:
        return replay(asked.seed, kind)
    first = random.SystemRandom().randrange(10**9) if asked.first is None else asked.first
    until, failed, seed = time.monotonic() + asked.seconds, 0, first
    for seed in itertools.count(first):
        if time.monotonic() >= until:
            break
        findings = simulate(seed, kind)
        if findings.wrong:
            failed += 1
            print(f"seed {seed}: {findings.wrong[0]}", flush=True)
    seconds = time.process_time()
    print(
        f"{seed - first} seeds from {first}, {failed} failed; {(seed - first) / seconds * 60:.0f} a CPU minute"
    )
    return bool(failed)


def search_planted() -> int:
    missed = 0
    for what, seed in search_all():
        missed += seed is None
        print(f"{'not found' if seed is None else seed}: {what}", flush=True)
    return bool(missed)


def replay(seed: int, kind: type[World]) -> int:
    with _seeded(seed):
        world = kind(seed)
        findings = world.run()
        start = world.observer.trace[0][0]
        for at, *what in world.observer.trace:
            print(f"{(at - start) / 1e6:10.6f}", *what)
        for spec in world.specs:
            print(spec)
        _bury_all(world)
    print(f"trace {findings.trace}, {findings.steps} steps, {findings.seconds:.1f} simulated seconds")
    for wrong in findings.wrong:
        print(f"WRONG: {wrong}")
    sys.stdout.flush()
    return bool(findings.wrong)


if __name__ == "__main__":
    sys.exit(main())
