"""The checker: what handlers wrote down while they ran, compared with what the store says about it.

A handler's line is in the file before it does anything else, whatever becomes of its process afterwards. So what the
store calls a success must be there, and what is there must be accounted for in the store's history.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from taskharbor.drivers.base import Driver
from taskharbor.records import AttemptStatus, JobRecord, State

READ_AT_ONCE = 500


class Execution(NamedTuple):
    """A handler has begun: which number it was given, for which job and attempt, in which process."""

    n: int
    job_id: str
    number: int
    pid: int

    @classmethod
    def of(cls, line: str) -> Execution:
        n, job_id, number, pid = line.split()
        return cls(int(n), job_id, int(number), int(pid))


@dataclass
class Findings:
    """What is wrong, job by job; empty where all is well. And what it cost."""

    lost: list[str] = field(default_factory=list)  # accepted, and not a success in the end
    condemned: list[str] = field(default_factory=list)  # dead or cancelled, which no fault may cause
    settled_twice: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)  # executions that the store cannot account for
    losses: int = 0  # attempts that ended with their worker: what was in flight
    repeated: int = 0  # executions beyond the first of each job

    def assert_nothing_wrong(self) -> None:
        wrong = {
            "lost": self.lost,
            "condemned": self.condemned,
            "settled twice": self.settled_twice,
            "unexpected": self.unexpected,
        }
        assert not any(wrong.values()), {name: (len(found), found[:5]) for name, found in wrong.items()}


async def audit(
    driver: Driver, accepted: Iterable[str], executions: Sequence[Execution], *, server_crashed: bool = False
) -> Findings:
    """Every accepted job against every line.

    A server that crashes may forget a claim that was not `at_most_once`. Its jobs are then claimed anew, under the
    number that was given out before: the same attempt is seen twice, and only one of the two can be settled.
    """
    found = Findings()
    ids = list(accepted)
    begun: defaultdict[str, Counter[int]] = defaultdict(Counter)  # job → attempt → how often
    for execution in executions:
        begun[execution.job_id][execution.number] += 1
    found.unexpected += [f"{job_id}: nobody enqueued it" for job_id in begun.keys() - set(ids)]
    for start in range(0, len(ids), READ_AT_ONCE):
        chunk = ids[start : start + READ_AT_ONCE]
        records = await driver.get(chunk)
        histories = [await _statuses(driver, record) for record in records]
        for job_id, record, statuses in zip(chunk, records, histories, strict=True):
            _judge(found, job_id, record, statuses, begun[job_id], server_crashed)
    return found


async def _statuses(driver: Driver, record: JobRecord | None) -> dict[int, AttemptStatus]:
    """What became of each attempt."""
    if record is None:
        return {}
    if (
        record.number == 1 and record.state is State.SUCCEEDED
    ):  # no need to ask: there is one row, and it says so
        return {1: AttemptStatus.SUCCEEDED}
    return {row.number: row.status for row in await driver.history(record.id, 1000)}


def _judge(
    found: Findings,
    job_id: str,
    record: JobRecord | None,
    statuses: dict[int, AttemptStatus],
    begun: Counter[int],
    server_crashed: bool,
) -> None:
    if record is None or record.state is not State.SUCCEEDED:
        ended = record is not None and record.state in (State.DEAD, State.CANCELLED)
        (found.condemned if ended else found.lost).append(f"{job_id}: {record and record.state}")
        return
    successes = [number for number, status in statuses.items() if status is AttemptStatus.SUCCEEDED]
    if len(successes) != 1 or successes[0] != record.number:
        found.settled_twice.append(f"{job_id}: {statuses}")
        return

    def unexpected(what: str) -> None:
        found.unexpected.append(f"{job_id}: {what}: {statuses}, begun {dict(begun)}")

    if sorted(statuses) != list(range(1, record.number + 1)):
        unexpected("numbers are missing")
    if set(statuses.values()) - {AttemptStatus.SUCCEEDED, AttemptStatus.LOST, AttemptStatus.RELEASED}:
        unexpected("an attempt ended as none of them can have")
    if not begun[record.number]:
        unexpected("a success without an execution")
    if begun.keys() - statuses.keys():
        unexpected("an execution without an attempt")
    losses = sum(status is AttemptStatus.LOST for status in statuses.values())
    if not server_crashed and (max(begun.values(), default=0) > 1 or begun.total() > 1 + losses):
        unexpected("executed more often than it was lost")
    found.losses += losses
    found.repeated += max(0, begun.total() - 1)
