"""A topic as a source of jobs: a worker claims its messages and settles them, as it does with the jobs of a store.

A message that succeeds leaves nothing but its offset. Whatever else becomes of it, it is handed over to the store
first, and only then does its offset count as finished. So a crash repeats messages, and loses none.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from msgspec.structs import replace

from taskharbor.drivers.base import (
    Claim,
    ClaimRequest,
    Driver,
    SettleAnswer,
    SettleResult,
    Transition,
)
from taskharbor.drivers.contract.handing_over import HandedOver, NotOwner
from taskharbor.drivers.contract.reading import StreamPartition
from taskharbor.records import AttemptRecord, AttemptStatus, JobRecord, NewJob, State
from taskharbor.rules.policy import LOST_TOGETHER, Loss, weigh_loss
from taskharbor.settle_batch import REFUSALS
from taskharbor.streams.consumer import Assigned, Commit, Jump
from taskharbor.streams.dead_jobs import UNREADABLE_TASK
from taskharbor.streams.first import First, FirstMessages, copied
from taskharbor.streams.handing import Handing
from taskharbor.streams.jobs import Held, MessageJobs, Rules
from taskharbor.streams.lines import BLOCKED_MAX, Lines, Order
from taskharbor.streams.log_source import BUFFER_BYTES, LogSource
from taskharbor.streams.messages import Unreadable
from taskharbor.streams.parts import Parts
from taskharbor.streams.rebalances import Rebalances
from taskharbor.streams.taken import Taken
from taskharbor.streams.tending import Tending
from taskharbor.telemetry.logs import log_line
from taskharbor.telemetry.metrics.meter import Meter
from taskharbor.worker.upkeep.retrying import Outages

logger = logging.getLogger("taskharbor.stream")

COPY_AGAIN_SECONDS = 1.0
FOLLOWERS_AT_ONCE = 500  # messages that go to the store with one that failed; those behind them follow


class StreamSource(LogSource[Held]):
    """What a worker needs of a source of jobs, on top of a topic. What has to last goes to the harbor's store.

    The parts: `Taken` has the messages and offsets in memory, `MessageJobs` makes jobs of messages, `Lines` keep their
    order, `Tending` looks after the lines that a failed message blocks, `Handing` asks the store, `FirstMessages` are
    handed over without being executed here, `Rebalances` serves partitions that come and go.
    """

    ROWS_COME_LATER = True
    WHY_NOT = "the first attempt of a message leaves no row in the store (a retry does), so it has no"

    def __init__(
        self,
        store: Driver,
        outages: Outages,
        *,
        topic: str,
        log_of: Callable[[str], bytes],
        capacity: int,
        rules: Rules,
        order: Order,
        holds: bool,
        revoke_seconds: float,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        super().__init__(store, rules.queue, loop)
        self._topic = topic
        self._capacity = capacity
        self._rules = rules
        self._log_of = log_of  # the digest of a topic's id, the cluster and the group
        self._jobs = MessageJobs(topic, rules, self.clock)
        self._handing = Handing(store, outages, rules.queue, self._jobs)
        self._taken = Taken()
        self._first = FirstMessages()
        self._lines = Lines(order, self._jobs, holds=holds)
        self._is_ordered = order is not Order.NONE
        self._holds = holds
        parts = Parts(self._taken, self._lines, self._handing, self._jobs, self.clock)
        self.rebalances = Rebalances(topic, parts, self._first, revoke_seconds)
        self.tending = Tending(parts, begin=self._begin, disown=self._disown)
        # Partitions that another worker took over, as the store says. (The consumer's thread takes them.)
        self._disowned: deque[int] = deque()

    def parts(self) -> list[Coroutine[Any, Any, None]]:
        """What runs beside the worker, for as long as it does."""
        return [self.hand_over_first(), self.operators.watch(), self.tending.run(), self.until_failure()]

    def count_in(self, meter: Meter | None) -> None:
        """Count the messages that are taken and handed over."""
        self._handing.meter = meter

    def workers_ended(self) -> None:
        self.rebalances.workers_ended()

    # -- what the worker asks --

    async def claim(self, request: ClaimRequest, *, now: int | None = None) -> Claim:
        instant = self.clock.now() if now is None else now
        wanted = 0 if request.suspects or self.operators.is_paused else request.limit
        given = self._taken.next(request.token, wanted, request.bytes_limit)
        if self.losses:
            given = self._without_lost(given, request.max_losses)
        return Claim(
            instant,
            instant + request.lease,
            [each.claimed for each in given],
            more=bool(given) and self._taken.is_waiting,
            max_losses=request.max_losses,
            holds=self.operators.holds,
        )

    def _without_lost(self, given: Sequence[Held], max_losses: int) -> list[Held]:
        """Settle what another process had begun when it died, and return the others: it may kill this one, too."""
        lost = [each for each in given if each.claimed.id in self.losses]
        if lost:
            settling = asyncio.ensure_future(self._settle_lost(lost, max_losses))
            self._settling.add(settling)
            settling.add_done_callback(self._settling.discard)
        return [each for each in given if each.claimed.id not in self.losses]

    async def _settle_lost(self, lost: Sequence[Held], max_losses: int) -> None:
        """Hand each over to the store with its loss recorded. The rules of losses decide there what becomes of it."""
        for held in lost:
            message = self.losses[held.claimed.id]
            what = f"lost: worker {message.worker} {message.how}"
            loss = Loss(held.token, message.worker, LOST_TOGETHER, what, started_at=message.started_at)
            transition = replace(
                weigh_loss(loss, held.claimed, [], max_losses=max_losses), worker=message.worker
            )
            log_line(
                logger,
                logging.WARNING,
                "message {message} was begun when worker {worker} {how}; it goes to the store",
                {
                    "message": str(held.place),
                    "worker": message.worker,
                    "how": message.how,
                    "job": held.claimed.id,
                    "task": held.claimed.task,
                },
            )
            await self._handing.repeatedly(partial(self._settle_each, [transition], self.clock.now()))
            self.losses.pop(held.claimed.id, None)

    async def _settle_each(self, transitions: Sequence[Transition], now: int) -> list[SettleResult]:
        """Hand over what did not succeed, and then count all of it as finished."""
        failed: list[tuple[Held, HandedOver]] = []
        children: list[NewJob] = []
        ended: list[Held] = []
        answers: list[SettleResult] = []
        again: list[Held] = []
        for t in transitions:
            held = self._taken.get(t.job_id)
            if held is None or held.token != t.token:
                answers.append(SettleResult(SettleAnswer.LEASE_MISMATCH, at=now))
                continue
            answers.append(SettleResult(SettleAnswer.DONE, t.to, now + t.delay if t.delay else None, at=now))
            is_handed_back = t.status is AttemptStatus.RELEASED and t.to is State.READY and t.delay is None
            if is_handed_back and t.aside is None:
                again.append(held)  # it stays in the log, and here as long as the partition does
            elif t.to is State.SUCCEEDED:
                children += t.inserts
                ended.append(held)
            else:
                failed.append((held, self._jobs.attempted(held, t, now)))
        if children:
            await self._store.enqueue(children)
        try:
            ended += await self._hand_over_failed(failed)
        except NotOwner as error:
            self._disown(error)
            return await self._settle_each(transitions, now)
        for each in again:
            self._taken.offer_again(each)
        for each in ended:
            self._taken.let_go(each)
        self._end(ended)
        return answers

    async def _hand_over_failed(self, failed: Sequence[tuple[Held, HandedOver]]) -> list[Held]:
        """Hand over messages that failed, each with those behind it; the messages whose lines go on here."""
        if not failed:
            return []
        followers = {held.claimed.id: self._lines.followers(held, FOLLOWERS_AT_ONCE) for held, _ in failed}
        try:
            await self._handing.now(self._with_followers(failed, followers))
        except REFUSALS:
            if not any(followers.values()):
                raise
            followers = {}  # it may be one of them: they follow one by one
            await self._handing.now(self._with_followers(failed, followers))
        going_on = []
        for held, handed in failed:
            if not self._blocks(held, handed):
                going_on.append(held)
                continue
            behind = followers.get(held.claimed.id, [])
            self._taken.let_go(held)
            self._lines.block(held, behind)
            self._taken.finish([held.place, *(each.place for each in behind)])
        return going_on

    def _with_followers(
        self, failed: Sequence[tuple[Held, HandedOver]], followers: Mapping[str, Sequence[Held]]
    ) -> list[HandedOver]:
        jobs = []
        for held, handed in failed:
            if not self._blocks(held, handed):
                jobs.append(handed)
                continue
            jobs.append(replace(handed, backlog=self._lines.place_of(held, opens=True)))
            for each in followers.get(held.claimed.id, ()):
                place = self._lines.place_of(each, opens=True)
                jobs.append(replace(self._jobs.unattempted(each), backlog=place))
        return jobs

    def _blocks(self, held: Held, handed: HandedOver) -> bool:
        """Whether those behind a message wait for its job."""
        return held.line is not None and (handed.to is not State.DEAD or self._holds)

    def _pop(self, job_id: str) -> Held | None:
        return self._taken.pop(job_id)

    def _end(self, ended: Iterable[Held]) -> None:
        """Note that messages have ended, or stand in the store; those behind them begin."""
        ended = list(ended)
        self._taken.finish([each.place for each in ended])
        if self._is_ordered:
            for each in ended:
                following = self._lines.leave(each)
                if following is not None:
                    self._begin(following)

    def _disown(self, error: NotOwner) -> None:
        """Forget partitions that another worker has taken over. If they are still this consumer's, it begins again."""
        partitions = {self._jobs.keys.number_of(each) for each in error.partitions}
        log_line(
            logger,
            logging.WARNING,
            "another worker took partitions {partitions} of {topic} over; what this one had begun of them comes again",
            {"topic": self._topic, "partitions": sorted(partitions)},
        )
        self.rebalances.lost(sorted(partitions))
        self._disowned.extend(partitions)

    async def get(self, ids: Sequence[str], *, now: int | None = None) -> list[JobRecord | None]:
        return await self._store.get(ids, now=now)

    async def history(self, job_id: str, limit: int = 100) -> list[AttemptRecord]:
        return await self._store.history(job_id, limit)

    # -- messages --

    def _take(self, messages: Sequence[Any]) -> None:
        """Take messages that the consumer's thread has read."""
        now = self.clock.now()
        taken = self._taken.new_ones(messages)
        if self._handing.meter is not None:
            self._handing.meter.messages_taken(len(taken))
        for message in taken:
            try:
                self._take_one(message, now)
            except Exception as error:  # noqa: BLE001 - one message must not take the others along
                place = self._jobs.place_of(message)
                self._first.add(First(place, self._jobs.unkeepable(place, UNREADABLE_TASK, error), 0))
        if taken:
            self._changes.announce()

    def _take_one(self, message: Any, now: int) -> None:
        """Take a message. The caller announces it."""
        held = self._jobs.read(message, now)
        if isinstance(held, Unreadable):
            place, size = self._jobs.place_of(message), len(message.value() or b"")
            self._first.add(First(place, self._jobs.unreadable(place, held), size, held, message))
            return
        if self._is_ordered:
            held.line = self._lines.key_of(held.place, message.key())
            if not self._lines.enter(held):
                return
        self._let_begin(held)

    def _begin(self, held: Held) -> None:
        self._let_begin(held)
        self._changes.announce()

    def _let_begin(self, held: Held) -> None:
        """Let a message go to a handler, or to the store if it is not to be executed here."""
        if self._rules.is_handed_over_first(held.claimed.task):
            place = self._lines.place_of(held, opens=True)
            handed = replace(self._jobs.unattempted(held), backlog=place)
            self._first.add(First(held.place, handed, held.size, held=held))
        else:
            self._taken.add(held)

    async def hand_over_first(self) -> None:
        """Hand over what is not to be executed here. Runs for as long as the worker does."""
        while True:
            token = self._changes.token
            waiting = self._first.next()
            batch = await copied(waiting, self._rules.send_unreadable)
            if batch:
                await self._hand_over_batch(batch)
            elif waiting:
                await self.clock.sleep(COPY_AGAIN_SECONDS)
            else:
                await self.wait_for_change(token, 1.0)

    async def _hand_over_batch(self, batch: Sequence[First]) -> None:
        try:
            await self._handing.each(batch)
        except NotOwner as error:
            self._disown(error)
            return
        self._first.remove(batch)
        for each in batch:
            if each.held is not None:
                self._lines.block(each.held)
        self._taken.finish([each.place for each in batch])

    # -- what the consumer's thread calls: see `consumer.Listener` --

    def room(self) -> int:
        """How many more messages may come, by number and by bytes."""
        waiting = 0 if self._lines.waits_here else self._lines.bytes
        if self.is_closing or self._taken.buffer_bytes + self._first.bytes + waiting >= BUFFER_BYTES:
            return 0
        if self._lines.blocked >= BLOCKED_MAX:
            return 0
        return self._taken.room(self._capacity - len(self._first))

    def full(self) -> set[int]:
        return self._taken.far_ahead() | self._lines.full()

    def disowned(self) -> set[int]:
        return {self._disowned.popleft() for _ in range(len(self._disowned))}

    def arrived(self, messages: Sequence[Any]) -> None:
        self._taken.arriving(len(messages))
        self._loop.call_soon_threadsafe(self._take, messages)

    def to_commit(self) -> list[Commit]:
        return self._taken.to_commit()

    def jumps(self) -> list[Jump]:
        return self._taken.jumps()

    def in_doubt(self) -> list[tuple[int, int]]:
        return self._taken.in_doubt()

    def trust(self, partition: int) -> None:
        async def trust() -> None:  # on the loop: after what came before
            self._taken.trust(partition)

        self._on_loop(trust())

    def committed(self, commits: Sequence[Commit]) -> None:
        self._taken.committed(commits)

    def assigned(self, topic_id: str, partitions: Sequence[Assigned]) -> None:
        self._on_loop(self._assigned(topic_id, partitions))

    async def _assigned(self, topic_id: str, partitions: Sequence[Assigned]) -> None:
        self._jobs.name_log(self._log_of(topic_id))
        came = {each.partition for each in partitions}
        disowned = [each for each in self._disowned if each not in came]
        self._disowned.clear()
        self._disowned.extend(disowned)
        await self.rebalances.assigned(partitions)

    def revoked(self, partitions: Sequence[int]) -> list[Commit]:
        # However busy the loop is, this waits: forgetting a partition that has come back would lose its messages.
        commits: list[Commit] = self._on_loop(self.rebalances.revoked(partitions))
        return commits

    def lost(self, partitions: Sequence[int]) -> None:
        self._loop.call_soon_threadsafe(self.rebalances.lost, partitions)

    def _on_loop(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    # -- for metrics --

    def partition_figures(self) -> list[StreamPartition]:
        return self._taken.partition_figures()

    def figures(self) -> dict[str, int]:
        return {**self._taken.figures(), "blocked": self._lines.blocked}
