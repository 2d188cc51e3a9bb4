"""What must hold of a supervisor, beside what holds of every worker."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

from taskharbor.clock import MICROS_PER_SECOND
from taskharbor.drivers.base import Claim, ClaimRequest, SettleAnswer, SettleResult, Transition
from taskharbor.records import AttemptStatus, Reason
from taskharbor.rules.policy import LOST_ALONE
from taskharbor.worker.supervisor.parent import GaveUp
from tests.simulation.observer import FORGIVEN_TROUBLES, Attempt, Held, Observer

if TYPE_CHECKING:
    from taskharbor.worker.pipeline.execution import Execution
    from tests.simulation.fleet import ChildBody, FleetWorld, ParentProcess
    from tests.simulation.world import Process

STARTS_A_SECOND_MAX = 7  # of one place, when each start fails at once: the pauses between them grow
RECOVERY_SECONDS = 2.5  # from the death of a child to the settling of what it had
CALL_SECONDS = 0.25  # what the settling of one job more may take
LAST_MOMENTS_SECONDS = 1  # in which a supervisor that has given up may still hear of a child that is ready
STOP_SECONDS = 3.0  # beyond the grace: for a supervisor to be gone
SUCCESSION_SECONDS = 1.0  # from the word of a child that retires to the start of its successor


class FleetObserver(Observer):
    world: FleetWorld

    def __init__(self, world: FleetWorld) -> None:
        super().__init__(world)
        self.starts: defaultdict[str, list[int]] = defaultdict(list)
        self.told = Counter[str]()  # what the worlds are full of
        self._settling: Process | None = None

    # -- lives --

    def child_started(self, child: ChildBody) -> None:
        self.note("start", child.name, child.config.suspects_only)
        self.told["starts"] += 1
        starts = self.starts[child.parent.name]
        starts.append(self.now)
        lately = sum(at > self.now - MICROS_PER_SECOND for at in starts)
        if lately > 2 * self.world.processes * STARTS_A_SECOND_MAX:
            self.wrong(f"{child.parent.name} has started {lately} processes within a second")
        self._judge_seats(child.parent)

    def _judge_seats(self, parent: ParentProcess) -> None:
        """In each at most one at work, and at most one that retires."""
        there = [child for child in parent.children if child.alive and not child.config.suspects_only]
        retiring = [child.name for child in there if child.retired_at is not None]
        for what, names in (
            ("retire", retiring),
            ("work", [child.name for child in there if child.name not in retiring]),
        ):
            if len(names) > self.world.processes:
                self.wrong(f"{parent.name} has {self.world.processes} seats, and there {what} {names}")

    def child_retires(self, child: ChildBody) -> None:
        """Its successor is started at once, however long its own handlers take."""
        self.note("retire", child.name)
        child.retired_at = retired_at = self.now
        if any(name == child.name for name in self.running.values()):
            self.told["retires with jobs"] += 1
        if child.config.suspects_only:
            return
        self._judge_seats(child.parent)

        def look() -> None:
            parent = child.parent
            if parent.stopped_at is not None or not self._was_well(parent, retired_at):
                return
            tried = [at for at, what, _ in parent.troubles if what == "no process"]
            if not any(at >= retired_at for at in (*self.starts[parent.name], *tried)):
                self.wrong(f"{child.name} has retired, and {parent.name} starts nobody in its place")

        self.world.universe.at(retired_at + int(SUCCESSION_SECONDS * MICROS_PER_SECOND), look)

    def child_died(self, child: ChildBody) -> None:
        """Whatever it had is settled soon, if its parent lives and can reach the store."""
        child.died_at = died_at = self.now
        mine = [held for held in map(self._holder, list(self.open)) if held.process == child.name]
        mine = [held for held in mine if held.token == held.claimed_as and not held.late]
        if not mine or not child.parent.alive:
            return
        seconds = RECOVERY_SECONDS + CALL_SECONDS * len(mine)

        def look() -> None:
            if not self._was_well(child.parent, died_at - MICROS_PER_SECOND):
                return
            left = [attempt for attempt, held in self.held.items() if held in mine and self._is_open(attempt)]
            left = [attempt for attempt in left if self.held[attempt].token == self.held[attempt].claimed_as]
            if left:
                self.wrong(f"{child.name} died, and {seconds:.1f} s later its parent has not settled {left}")

        self.world.universe.at(died_at + int(seconds * MICROS_PER_SECOND), look)

    def _is_open(self, attempt: Attempt) -> bool:
        return self.open.get(attempt[0]) == attempt[1]

    def _was_well(self, parent: ParentProcess, since: int) -> bool:
        """It lives, and had no more than a lost call or two."""
        troubles = self._troubles_since(parent, since)
        long = any(
            what in ("freeze", "thaw", "late") or seconds > self.world.lease_seconds / 8
            for _, what, seconds in troubles
        )
        return parent.alive and not parent.ends_now and len(troubles) <= FORGIVEN_TROUBLES and not long

    def process_ended(self, process: Process, error: BaseException | None) -> None:
        children: list[ChildBody] | None = getattr(process, "children", None)
        if children is None:
            super().process_ended(process, error)
            return
        if isinstance(error, GaveUp):
            long_ago = self.now - LAST_MOMENTS_SECONDS * MICROS_PER_SECOND
            if any(child.first_began_at < long_ago for child in children if child.begun):
                self.wrong(f"{process.name} gave up although a child had begun to work: {error}")
            error = None
        stopped_at, process.stopped_at = process.stopped_at, None  # it has limits of its own
        super().process_ended(process, error)
        process.stopped_at = stopped_at
        self._judge_stop(process)
        # Its last signals are under way.
        self.world.universe.at(
            self.now + MICROS_PER_SECOND // 10, lambda: self._nobody_left(process, children)
        )

    def _judge_stop(self, process: Process) -> None:
        if process.stopped_at is None:
            return
        took = (self.now - process.stopped_at) / MICROS_PER_SECOND
        frozen = sum(seconds for _, what, seconds in process.troubles if what in ("freeze", "slow"))
        most = self.world.grace_seconds + STOP_SECONDS + 2 * frozen
        if took > most:
            self.wrong(f"{process.name} took {took:.1f} s to stop; at most {most:.1f} s")

    def _nobody_left(self, process: Process, children: list[ChildBody]) -> None:
        left = [child.name for child in children if child.alive]
        if left:
            self.wrong(f"{process.name} has ended, and its children {left} live")

    # -- jobs --

    def began(self, process: Process, execution: Execution) -> None:
        super().began(process, execution)
        child: Any = process
        if not hasattr(child, "config"):
            return
        child.first_began_at = child.first_began_at or self.now
        child.begun += 1
        is_beyond = child.config.max_jobs is not None and child.begun > child.config.max_jobs
        if is_beyond:
            self.told["begins beyond the limit"] += 1
            if child.child.may_retire or self._has_its_seat_alone(child):
                self.wrong(f"{child.name} begins job {child.begun} of {child.config.max_jobs}")

    def _has_its_seat_alone(self, child: ChildBody) -> bool:
        """Nobody has retired beside it for so long that it must have been told."""
        parent = child.parent
        long_ago = self.now - int(RECOVERY_SECONDS * MICROS_PER_SECOND)
        retired = [each for each in parent.children if each.retired_at is not None and each is not child]
        if any(each.died_at is None or each.died_at > long_ago for each in retired):
            return False
        return self._was_well(parent, long_ago) and not self._was_in_trouble(child, long_ago)

    def _claim(self, process: Process, request: ClaimRequest, claim: Claim, late: bool) -> None:
        super()._claim(process, request, claim, late)
        if claim.jobs and hasattr(process, "config") and self.world.dies_at_a_claim and not late:
            self.world.dies_at_a_claim = False
            process.dies_unanswered = True

    def _settle(self, process: Process, transitions: Any, answers: list[SettleResult], late: bool) -> None:
        self._settling = process
        judge = (
            self._settled_from_outside
            if hasattr(process, "children")
            else self._settled_by_itself
            if hasattr(process, "config")
            else None
        )
        for transition, answer in zip(transitions, answers, strict=True):
            if judge is not None and answer.answer is SettleAnswer.DONE and answer.recorded is None:
                judge(process, transition)
        super()._settle(process, transitions, answers, late)
        self._settling = None

    def _settled_from_outside(self, parent: Process, transition: Transition) -> None:
        attempt = (transition.job_id, transition.number)
        held = self.held[attempt]
        child: Any = self.processes[held.process]
        if child.alive:
            self.wrong(f"{attempt} is settled from outside while {child.name} lives")
        elif not child.is_session_gone:
            self.wrong(f"{attempt} is settled while something of {child.name} is left")
        if transition.job_id not in self.specs:
            return
        has_begun = any(number == transition.number for number, _, _ in self.begins[transition.job_id])
        self.told[f"{transition.status} from outside"] += 1
        if transition.status is AttemptStatus.LOST:
            if not has_begun:
                self.wrong(f"{attempt} had only been claimed by {child.name}, and is lost")
            if child.ended_by_itself and self._could_settle(child, held):
                self.wrong(f"{attempt} is lost, because {child.name} did not wait for it")
            if transition.detail == LOST_ALONE and not child.config.suspects_only:
                self.wrong(f"{attempt} was not alone in {child.name}, and its loss counts")
        elif has_begun and parent.stopped_at is None:
            # Only what did not stop in time may be released after it has begun.
            self.wrong(f"{attempt} had begun in {child.name}, and is {transition.status}")

    def _could_settle(self, child: Any, held: Held) -> bool:
        if child.ends_now or child.parent.ends_now:
            return False
        if child.stopped_at is None and child.parent.stopped_at is None:
            # It retired: it waits for a settle that began before the claim, however long that takes.
            return not any(at >= held.claimed_at for at, _, _ in child.troubles)
        return not self._was_in_trouble(child, held.claimed_at)

    def _settled_by_itself(self, process: Process, transition: Transition) -> None:
        """Retiring is no reason to interrupt anybody: only a shutdown releases what has begun."""
        child: Any = process
        attempt = (transition.job_id, transition.number)
        has_begun = any(number == transition.number for number, _, _ in self.begins[transition.job_id])
        is_interrupted = (
            transition.status is AttemptStatus.RELEASED or transition.reason is Reason.INTERRUPTED
        )
        if has_begun and is_interrupted and child.stopped_at is None and child.parent.stopped_at is None:
            self.wrong(f"{attempt} had begun in {child.name}, which nobody told to stop, and is interrupted")

    def _lost(self, attempt: Attempt, held: Held) -> None:
        if hasattr(self._settling, "children"):
            return  # it has seen the child die
        super()._lost(attempt, held)
        child: Any = self.processes[held.process]
        parent = getattr(child, "parent", None)
        begun_at = [at for number, _, at in self.begins[attempt[0]] if number == attempt[1]]
        if parent is None or not child.alive or held.late or not begun_at:
            return
        if any(held.claimed_at <= at <= begun_at[0] for at, _, _ in child.troubles):
            return  # nobody could extend what the child itself had not been told of
        # Its handler may have held up everything in there: that is what the heartbeat from outside is for.
        if self._was_well(parent, held.claimed_at):
            self.wrong(f"{attempt} is lost by {child.name}, and both it and its parent live")
