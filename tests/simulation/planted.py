"""Bugs that are planted to see whether the simulation finds them: each is a mistake somebody might make."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

from msgspec.structs import replace

from taskharbor import rescue
from taskharbor.drivers.base import Extended, SettleAnswer, SettleResult
from taskharbor.drivers.memory import leases, settle
from taskharbor.drivers.memory.driver import MemoryDriver
from taskharbor.errors import StoreError
from taskharbor.records import State
from taskharbor.rules import policy, retry_decision, settling
from taskharbor.rules.outcome import HandedBack, Succeeded
from taskharbor.worker import run
from taskharbor.worker.handlers import outcomes
from taskharbor.worker.pipeline import committer as committing
from taskharbor.worker.pipeline import preflight
from taskharbor.worker.pipeline.committer import Committer
from taskharbor.worker.pipeline.execution import Execution
from taskharbor.worker.pipeline.executor import Executor
from taskharbor.worker.pipeline.fetcher import Fetcher
from taskharbor.worker.pipeline.lease_keeper import LeaseKeeper
from taskharbor.worker.pipeline.leases import StoreTime
from taskharbor.worker.pipeline.patient_store import PatientStore
from taskharbor.worker.pipeline.pipeline import Pipeline
from taskharbor.worker.upkeep.colleagues import Colleagues

Planted = Callable[[], AbstractContextManager[Any]]
PLANTED: dict[str, Planted] = {}


def plant(what: str) -> Callable[[Planted], Planted]:
    def keep(planted: Planted) -> Planted:
        PLANTED[what] = planted
        return planted

    return keep


# -- in the store --------------------------------------------------------------------------------


@plant("an expired lease can still settle")
def expired_settles() -> Any:
    fence = settle.fence

    def lenient(job: Any, token: str, number: int, now: int) -> SettleAnswer:
        answer = fence(job, token, number, now)
        return SettleAnswer.DONE if answer is SettleAnswer.LEASE_EXPIRED else answer

    return mock.patch.object(settle, "fence", lenient)


@plant("a settle does not prove its lease")
def any_token_settles() -> Any:
    fence = settle.fence

    def lenient(job: Any, token: str, number: int, now: int) -> SettleAnswer:
        answer = fence(job, token, number, now)
        mine = job is not None and job.at.number == number
        return SettleAnswer.DONE if answer is SettleAnswer.LEASE_MISMATCH and mine else answer

    return mock.patch.object(settle, "fence", lenient)


@plant("a heartbeat revives an expired lease")
def heartbeat_revives() -> Any:
    extend = leases._extend

    def lenient(store: Any, extension: Any, now: int) -> Extended:
        lease = store.leases.get(extension.token)
        if lease is not None:
            lease.expires_at = max(lease.expires_at, now + 1)
        return extend(store, extension, now)

    return mock.patch.object(leases, "_extend", lenient)


@plant("a collector takes leases a little early")
def collects_early() -> Any:
    first = leases._first_expired
    return mock.patch.object(leases, "_first_expired", lambda store, now: first(store, now + 500_000))


@plant("a job is claimed before its time")
def claims_early() -> Any:
    after = leases.after
    return mock.patch.object(leases, "after", lambda instant: after(instant + 300_000))


@plant("a request to cancel is forgotten when the job is put back")
def cancel_forgotten() -> Any:
    wins = settling.cancel_wins

    def forgetful(transition: Any, requested: bool) -> bool:
        return transition.to is not State.READY and wins(transition, requested)

    return mock.patch.object(settling, "cancel_wins", forgetful)


@plant("a dependant is released by the first of those it waits for")
def released_early() -> Any:
    def hasty(store: Any, job: Any) -> tuple[str, ...]:
        released: list[str] = []
        if job.state is State.SUCCEEDED:
            for job_id in sorted(store.dependants.get(job.id, ())):
                dependant = store.jobs[job_id]
                dependant.unmet = frozenset()
                if dependant.state is State.WAITING:
                    store.move(dependant, replace(dependant.at, state=State.READY))
                    released.append(job_id)
        return tuple(released)

    return mock.patch.object(settle, "_release_dependants", hasty)


@plant("a repeated claim gives other jobs")
def claim_not_repeatable() -> Any:
    claim = MemoryDriver.claim

    async def forgetful(self: Any, request: Any, *, now: int | None = None) -> Any:
        fresh = f"{request.token}-{self._store.__dict__.setdefault('claims', 0)}"
        self._store.__dict__["claims"] += 1
        if request.token in self._store.leases:
            request = replace(request, token=fresh)
        return await claim(self, request, now=now)

    return mock.patch.object(MemoryDriver, "claim", forgetful)


@plant("a worker that survives its lease is known only once the loss is recorded")
def survival_forgotten() -> Any:
    mark_survived = leases.mark_survived

    def forgetful(store: Any, tokens: Any, now: int) -> None:
        marked = [lease.worker_survived for lease in store.leases.values()]
        mark_survived(store, tokens, now)
        for lease, before in zip(store.leases.values(), marked, strict=True):
            lease.worker_survived = before

    stack = contextlib.ExitStack()
    stack.enter_context(mock.patch.object(leases, "mark_survived", forgetful))
    stack.enter_context(mock.patch.object(settle, "mark_survived", forgetful))
    return stack


@plant("a claim does not say which holds are in force")
def claim_silent_about_holds() -> Any:
    claim = leases.claim

    def silent(store: Any, request: Any, now: int) -> Any:
        return replace(claim(store, request, now), holds=frozenset())

    return mock.patch.object(leases, "claim", silent)


@plant("a claim hands out what stands aside for a hold")
def held_ones_claimed() -> Any:
    lanes, labels_of = leases._lanes, leases._labels_of

    def everywhere(store: Any, *more: Any) -> Any:
        with mock.patch.object(store, "holds", {}):
            yield from list(lanes(store, *more))

    return _both(
        mock.patch.object(leases, "_lanes", everywhere),
        mock.patch.object(leases, "_labels_of", lambda store, request, _: labels_of(store, request, set())),
    )


# -- in the policy -------------------------------------------------------------------------------


@plant("one failure more than the limit is retried")
def limit_off_by_one() -> Any:
    decide = retry_decision.decide_failure

    def generous(info: Any, **settings: Any) -> Any:
        limit = settings["job_max_attempts"]
        return decide(info, **{**settings, "job_max_attempts": limit + 1 if limit else limit})

    return mock.patch.object(policy, "decide_failure", generous)


@plant("handing a job back counts a failure")
def hand_back_counts() -> Any:
    decide = policy.settle_outcome

    def counting(token: str, job: Any, outcome: Any, *more: Any, **settings: Any) -> Any:
        transition, decision = decide(token, job, outcome, *more, **settings)
        if isinstance(outcome, HandedBack):
            transition = replace(transition, attempts=transition.attempts + 1)
        return transition, decision

    return mock.patch.object(committing, "settle_outcome", counting)


@plant("a retry is placed by the worker's clock")
def retry_by_own_clock() -> Any:
    transition_of = Committer._transition

    async def by_own_clock(self: Any, execution: Any, outcome: Any) -> Any:
        transition, decision = await transition_of(self, execution, outcome)
        if transition.delay is not None and decision is not None:
            wrong = self._clock.now() - self._time.now()
            transition = replace(transition, delay=max(0, transition.delay + wrong))
        return transition, decision

    return mock.patch.object(Committer, "_transition", by_own_clock)


@plant("every loss counts as one while alone")
def neighbours_condemned() -> Any:
    weigh = policy.settle_loss

    def harsh(lease: Any, *more: Any, **settings: Any) -> Any:
        return weigh(replace(lease, alone=True, max_losses=1), *more, **settings)

    return mock.patch.object(rescue, "settle_loss", harsh)


@plant("a loss has no fingerprint")
def loss_without_cause() -> Any:
    weigh = policy.settle_loss

    def without(*facts: Any, **settings: Any) -> Any:
        return replace(weigh(*facts, **settings), fingerprint=None)

    return mock.patch.object(rescue, "settle_loss", without)


# -- in the worker -------------------------------------------------------------------------------


@plant("a handler that stops early has succeeded")
def stop_succeeds() -> Any:
    return mock.patch.object(outcomes, "of_stop", return_value=Succeeded())


@plant("a handler that stops early has failed")
def stop_fails() -> Any:
    failed = outcomes.of_failure(RuntimeError("stopped"))
    return mock.patch.object(outcomes, "of_stop", return_value=failed)


@plant("at_most_once is not marked before the handler begins")
def once_not_marked() -> Any:
    async def unmarked(self: Any, execution: Execution) -> bool:
        return True

    return mock.patch.object(LeaseKeeper, "mark_at_most_once", unmarked)


@plant("a settle that failed is not repeated")
def settle_not_repeated() -> Any:
    async def once(self: Any, transitions: Any) -> Any:
        try:
            return await self.driver.settle(transitions)
        except StoreError:
            return [SettleResult(SettleAnswer.NOT_RUNNING) for _ in transitions]

    return mock.patch.object(PatientStore, "settle", once)


@plant("a claim that failed is repeated under another token")
def claim_under_new_token() -> Any:
    async def forgetful(self: Any, request: Any) -> Any:
        while True:
            try:
                asked_at = self._time.asking()
                claim = await self._driver.claim(request)
                self._time.learn(claim.now, asked_at)
                return claim
            except StoreError:
                request = replace(request, token=self._leases.new_token())
                await self._clock.sleep(0.05)

    accepted = Fetcher._accepted

    def by_any_token(self: Any, request: Any, claim: Any) -> Any:
        held = next((lease for lease in _leases_of(self, claim)), request.token)
        return accepted(self, replace(request, token=held), claim)

    return _both(
        mock.patch.object(Fetcher, "_claim_once", forgetful),
        mock.patch.object(Fetcher, "_accepted", by_any_token),
    )


def _leases_of(fetcher: Any, claim: Any) -> list[str]:
    """The token that the store knows these jobs by."""
    jobs = fetcher._driver._store.jobs
    return [jobs[job.id].lease.token for job in claim.jobs if jobs[job.id].lease is not None]


@plant("no worker looks after the jobs that stand aside")
def aside_forgotten() -> Any:
    async def nowhere(self: Any, labels: Any, queues: Any) -> Any:
        return (), ()

    return mock.patch.object(Colleagues, "to_look_into", nowhere)


@plant("a hold does not reach what is claimed already")
def hold_comes_too_late() -> Any:
    def for_later_claims(self: Any, holds: Any) -> None:
        self.holds = holds

    return _both(
        mock.patch.object(Pipeline, "heed_holds", for_later_claims),
        mock.patch.object(preflight, "held_by", return_value=None),
    )


@plant("children exist before the attempt has succeeded")
def children_at_once() -> Any:
    def eager(self: Any, signature: Any) -> str:
        new = signature.new_job()
        with contextlib.suppress(StopIteration):
            MemoryDriver.enqueue(self.harbor.driver, [new]).send(None)
        return str(new.id)

    return mock.patch.object(Execution, "add_child", eager)


@plant("a worker that stops keeps what it has not begun")
def unbegun_kept() -> Any:
    def forgetful(self: Any, **_: Any) -> None:
        self._pipeline.is_closing = True
        self._pipeline.claimed.clear()

    return mock.patch.object(Executor, "begin_no_more", forgetful)


@plant("a timeout is measured by a clock that can be set")
def timeout_by_wall_clock() -> Any:
    class ByWallClock(StoreTime):
        def asking(self) -> int:
            return int(self._clock.now())

    return mock.patch.object(run, "StoreTime", ByWallClock)


@plant("the heartbeat stops after its first failure")
def heart_stops() -> Any:
    async def once(self: Any) -> None:
        with contextlib.suppress(StoreError):
            while True:
                await self._clock.sleep(self._lease / 3e6)
                await self.beat()
        await asyncio.Event().wait()

    return mock.patch.object(LeaseKeeper, "run", once)


@contextlib.contextmanager
def _both(*patches: AbstractContextManager[Any]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch)
        yield
