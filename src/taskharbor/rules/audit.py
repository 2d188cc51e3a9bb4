"""The audit: what counts as a change, and which jobs keep the id of the action that changed them."""

from __future__ import annotations

from collections.abc import Iterable

from taskharbor.drivers.contract.operating import OperationResult, OperationVerdict

_CHANGES = (OperationVerdict.DONE, OperationVerdict.REQUESTED)


def is_change(answer: OperationResult) -> bool:
    """Whether the operation changed this job, or asked it to end. What was refused is not recorded."""
    return answer.verdict in _CHANGES


def changed_jobs(answers: Iterable[OperationResult]) -> list[str]:
    """Return the jobs that were changed, and the dependants that ended with them, by id."""
    changed = [answer for answer in answers if is_change(answer)]
    ended = (job_id for answer in changed for job_id in answer.cancelled)
    return sorted({*(answer.job_id for answer in changed), *ended})
