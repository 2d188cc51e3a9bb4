"""A payment that must never be made twice: at_most_once, even when its worker is killed in the middle."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from taskharbor import Harbor, JobConflict, State, Worker

VICTIM = """
import os, signal, sys
from taskharbor import Harbor, Worker

harbor = Harbor(sys.argv[1])

@harbor.task(name="pay", delivery="at_most_once")
def pay(amount: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)  # killed after the handler had begun: was it paid?

Worker(harbor, lease_seconds=0.3).run_sync()
"""


def main(url: str) -> None:
    with Harbor(url) as harbor:
        payments: list[int] = []

        @harbor.task(name="pay", delivery="at_most_once")
        def pay(amount: int) -> None:
            payments.append(amount)
            raise ConnectionError("the bank did not answer")

        failed = pay.using(max_attempts=5).enqueue(10)
        Worker(harbor).drain_sync()
        assert (failed.refresh().reason, payments) == ("not_retryable", [10])  # whatever max_attempts says

        killed = pay.enqueue(20)
        subprocess.run([sys.executable, "-c", VICTIM, url], check=False)
        while (killed := killed.refresh()).state is State.RUNNING:  # until its lease expires
            Worker(harbor).drain_sync()  # would run the job again, if that were allowed
        print(f"{killed.state}: {killed.reason}; {killed.error}")
        assert (killed.state, killed.reason, payments) == (State.DEAD, "lost", [10])

        # Only a person who knows that it was not paid may run it again.
        assert harbor.dlq.requeue_all() == 0
        try:
            harbor.dlq.requeue(killed.id)
        except JobConflict as error:
            print(error)
        harbor.dlq.requeue(killed.id, force=True)
        Worker(harbor).drain_sync()
        assert payments == [10, 20]


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        main(f"sqlite:///{Path(folder) / 'harbor.db'}")
