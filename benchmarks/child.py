"""`python -m benchmarks.child`: one measurement, or one part of it, in a process of its own."""

from __future__ import annotations

import argparse
import json
import os
import time
from functools import partial
from pathlib import Path

from benchmarks.discovery import pick
from benchmarks.durations import SLOTS, measure_work
from benchmarks.growth import run_growth_step
from benchmarks.measures import measure
from benchmarks.scaling import drain_by_processes, drain_share
from benchmarks.settings import CHECKOUT_VARIABLE, Settings
from benchmarks.snapshot import measure_churn
from benchmarks.work import PLAIN, Work
from benchmarks.worker_process import REPORT, REPORT_VARIABLE

VERBS = (
    *("measure", "serve", "fill", "growth", "scale", "share", "snapshot", "create", "remove", "work"),
    *("idle_workers", "footprint"),
)


def main() -> None:
    options = parse()
    check_checkout()
    settings = Settings(**json.loads(options.settings))
    contestant = pick(options.module, options.name)(poll_seconds=settings.poll_seconds)
    if options.verb == "measure":
        print(json.dumps(measure(options.measure, options.module, contestant, settings, options.directory)))
        return
    if options.verb in ("idle_workers", "footprint"):
        from benchmarks import load  # needs PostgreSQL's driver, which not every peer has

        figures = (
            load.measure_idle_workers(options.count, options.directory)
            if options.verb == "idle_workers"
            else load.measure_footprint(settings, options.directory)
        )
        print(json.dumps(figures))
        return
    if options.verb == "work":
        print(json.dumps(measure_work(options.module, contestant, options.work, settings, options.directory)))
        return
    if options.verb == "scale":
        figures = drain_by_processes(options.module, contestant, options.count, settings, options.directory)
        print(json.dumps(figures))
        return
    if options.verb in ("create", "remove"):
        change = contestant.create_store if options.verb == "create" else contestant.remove_store
        change(options.directory)
        print(json.dumps({}))
        return
    if options.verb == "snapshot":
        print(json.dumps(measure_churn(contestant, options.seconds, options.directory)))
        return
    if options.verb == "serve":
        contestant.slots = None if options.work is None else SLOTS[options.work.kind]
        os.environ[REPORT_VARIABLE] = f"/proc/{os.getpid()}/fd/{options.report}"
    contestant.setup(options.directory)
    try:
        if options.verb == "serve":
            if command := contestant.serve_command(options.report):
                os.execvp(command[0], command)
            contestant.serve(partial(report_started, options.report))
        elif options.verb == "fill":
            contestant.fill_work(options.work or PLAIN, options.count)
        elif options.verb == "share":
            if command := contestant.share_command():
                os.execvp(command[0], command)
            drain_share(contestant)
        else:
            print(json.dumps(run_growth_step(contestant, options.step, options.count)))
    finally:
        contestant.close()


def check_checkout() -> None:
    """Refuse to measure the code of one checkout under the name of another."""
    wanted = os.environ.get(CHECKOUT_VARIABLE)
    if wanted is None:
        return
    import taskharbor  # not at the top: it would weigh on the memory of every peer

    if not Path(taskharbor.__file__).resolve().is_relative_to(Path(wanted).resolve()):
        raise RuntimeError(f"TaskHarbor was imported from {taskharbor.__file__}, not from {wanted}")


def report_started(descriptor: int, number: int) -> None:
    """Tell the producer when a handler began; one write below PIPE_BUF is atomic between threads."""
    os.write(descriptor, REPORT.pack(number, time.time_ns()))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.child")
    parser.add_argument("verb", choices=VERBS)
    parser.add_argument("module")
    parser.add_argument("name")
    parser.add_argument("--settings", required=True)
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--measure")
    parser.add_argument("--count", type=int, default=0)
    parser.add_argument("--work", type=Work.parse)
    parser.add_argument("--step")
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--report", type=int)
    return parser.parse_args()


if __name__ == "__main__":
    main()
