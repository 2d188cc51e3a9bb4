"""The checker of the fault tests finds what they are there to find."""

from __future__ import annotations

from collections import Counter

import pytest

from taskharbor import Harbor, Unrecoverable, Worker
from taskharbor.records import AttemptStatus, State
from tests.faults.audit import Execution, Findings, _judge, audit


async def _history_of_two() -> tuple[Harbor, str, str]:
    """A job that has succeeded and one that is dead."""
    harbor = Harbor("memory://")

    @harbor.task(name="note")
    async def note(good: bool) -> None:
        if not good:
            raise Unrecoverable

    jobs = await note.aenqueue_many([{"good": True}, {"good": False}])
    await Worker(harbor).drain()
    return harbor, jobs[0].id, jobs[1].id


async def test_what_is_accounted_for_is_no_finding():
    harbor, good, _ = await _history_of_two()
    found = await audit(harbor.driver, [good], [Execution(0, good, 1, 1)])
    found.assert_nothing_wrong()
    assert (found.losses, found.repeated) == (0, 0)


@pytest.mark.parametrize(("executions", "complaint"), [
    ([], "a success without an execution"),
    ([1, 1], "executed more often than it was lost"),
    ([1, 2], "an execution without an attempt"),
])  # fmt: skip
async def test_executions_that_do_not_fit_the_history_are_unexpected(executions: list[int], complaint: str):
    harbor, good, _ = await _history_of_two()
    found = await audit(harbor.driver, [good], [Execution(0, good, number, 1) for number in executions])
    assert complaint in found.unexpected[0]
    with pytest.raises(AssertionError, match="unexpected"):
        found.assert_nothing_wrong()


async def test_attempt_seen_twice_is_expected_of_a_server_that_crashed():
    harbor, good, _ = await _history_of_two()
    seen = [Execution(0, good, 1, 1), Execution(0, good, 1, 2)]
    found = await audit(harbor.driver, [good], seen, server_crashed=True)
    found.assert_nothing_wrong()
    assert found.repeated == 1


async def test_jobs_that_are_gone_dead_or_nobodys_are_found():
    harbor, good, dead = await _history_of_two()
    waiting = (await harbor.aenqueue("note", {"good": True})).id
    gone = "019b76da-a800-7000-8000-000000000001"
    seen = [Execution(0, good, 1, 1), Execution(0, dead, 1, 1), Execution(0, "stray", 1, 1)]
    found = await audit(harbor.driver, [good, dead, waiting, gone], seen)
    assert found.condemned == [f"{dead}: {State.DEAD}"]
    assert found.lost == [f"{waiting}: {State.READY}", f"{gone}: None"]
    assert found.unexpected == ["stray: nobody enqueued it"]


async def test_two_successes_of_one_job_are_found():
    """No store of ours lets itself be brought to that: so the judge is shown one that does."""
    harbor, good, _ = await _history_of_two()
    [record] = await harbor.driver.get([good])
    found = Findings()
    twice = {1: AttemptStatus.SUCCEEDED, 2: AttemptStatus.SUCCEEDED}
    _judge(found, good, record, twice, Counter({1: 1, 2: 1}), server_crashed=False)
    assert len(found.settled_twice) == 1
