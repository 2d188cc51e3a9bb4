"""Transitions: the end of an attempt as a value, and what is stored while it is still under way."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import TypeVar, overload

from msgspec import Struct

from taskharbor.drivers.contract.leasing import SettleAnswer
from taskharbor.records import AttemptStatus, NewJob, Progress, Reason, State

T = TypeVar("T")


class Occurrence(Struct, frozen=True):
    """The next occurrence of a recurring job, computed from the schedule at `version`.

    `run_at` is its place where that is not its due time: a paused one is parked, an extra run comes at once.
    """

    due_at: int
    version: int
    run_at: int | None = None


class Transition(Struct, frozen=True, gc=False):
    """The end of one attempt: what it proves, what to record, and where the job goes.

    To `READY`, the job is runnable after `delay` from the store's now, or, when `delay` is None, at once
    and in the place it had. With `occurrence`, any ending re-arms the job instead of finishing it.
    A job that a caller asked to cancel ends cancelled, whatever this says, unless it succeeded; an
    `occurrence` that came with `READY` is used only then.
    """

    token: str
    job_id: str
    number: int
    status: AttemptStatus
    to: State  # READY, SUCCEEDED, DEAD or CANCELLED
    attempts: int = 0  # failures in the run, after this attempt
    started_at: int | None = None  # None: it never began
    delay: int | None = None
    suspect: bool = False
    reason: Reason | None = None
    error: str | None = None
    traceback: str | None = None
    result: str | None = None
    detail: str | None = None
    worker: str | None = None  # whose attempt it was, when not the token's
    worker_survived: bool = False  # lost, but the worker is alive
    inserts: tuple[NewJob, ...] = ()  # children: they exist if and only if this is applied
    occurrence: Occurrence | None = None
    # Without one: the version of the job that this relies on, such as that it recurs no longer.
    version: int | None = None
    # With `occurrence`, to `DEAD`: a one-off copy of the job that is dead from the start, for `reason`, and has the
    # run's attempts for its history. It exists if and only if this is applied as it says; with any other ending, never.
    dead_letter: NewJob | None = None
    # Of a failure, a timeout, a loss or a job that no worker can begin: its cause, and the code it happened in.
    fingerprint: str | None = None
    code_version: str | None = None
    # To `READY`: the label of the place aside where the job stands from now on; None for its ordinary place. Only for a
    # store that offers `Holds`.
    aside: str | None = None

    @property
    def relies_on(self) -> int | None:
        """The version that the job must still have; None, as for most: whatever it is."""
        return self.version if self.occurrence is None else self.occurrence.version

    @property
    def is_plain(self) -> bool:
        """Whether it is a success and nothing more: a row of history is all that it leaves."""
        return _unusual(self) == _NOTHING_UNUSUAL


_unusual = attrgetter(
    "status",
    "to",
    "inserts",
    "occurrence",
    "version",
    "error",
    "traceback",
    "detail",
    "worker",
    "worker_survived",
)
_NOTHING_UNUSUAL = (AttemptStatus.SUCCEEDED, State.SUCCEEDED, (), None, None, None, None, None, None, False)


def are_plain(transitions: Iterable[Transition]) -> bool:
    """Whether all of them are, in far less time than it takes to ask each."""
    return isinstance(transitions, PlainSuccesses) or all(
        map(_NOTHING_UNUSUAL.__eq__, map(_unusual, transitions))
    )


class PlainSuccesses(Sequence[Transition]):
    """A batch of plain successes as columns, which a worker hands to `settle`: nearly every batch is one.

    A driver that writes columns takes the lists, all of one length. For any other driver it is a sequence of
    transitions, each of them plain, which are made when the first of them is asked for.
    """

    __slots__ = ("_transitions", "attempts", "ids", "numbers", "results", "started_ats", "tokens")

    def __init__(
        self,
        tokens: list[str],
        ids: list[str],
        numbers: list[int],
        attempts: list[int],
        started_ats: list[int | None],
        results: list[str | None] | None,
    ) -> None:
        self.tokens = tokens
        self.ids = ids
        self.numbers = numbers
        self.attempts = attempts
        self.started_ats = started_ats
        self.results = results  # None if no job has one
        self._transitions: list[Transition] | None = None

    @classmethod
    def of(cls, transitions: Sequence[Transition]) -> PlainSuccesses | None:
        """Return the batch as columns; None if any of it is not plain."""
        if isinstance(transitions, PlainSuccesses):
            return transitions
        if not are_plain(transitions):
            return None
        results = [t.result for t in transitions]
        return cls(
            [t.token for t in transitions],
            [t.job_id for t in transitions],
            [t.number for t in transitions],
            [t.attempts for t in transitions],
            [t.started_at for t in transitions],
            None if results.count(None) == len(results) else results,
        )

    def by_token(self) -> dict[str, PlainSuccesses]:
        """Sort the batch by lease; a batch of one lease, as most are, is not copied."""
        tokens = self.tokens
        if len(set(tokens)) == 1:
            return {tokens[0]: self}
        places: dict[str, list[int]] = {}
        for place, token in enumerate(tokens):
            places.setdefault(token, []).append(place)
        return {token: self._at(those) for token, those in places.items()}

    def _at(self, places: list[int]) -> PlainSuccesses:
        def some(column: list[T]) -> list[T]:
            return [column[place] for place in places]

        return PlainSuccesses(
            some(self.tokens),
            some(self.ids),
            some(self.numbers),
            some(self.attempts),
            some(self.started_ats),
            None if self.results is None else some(self.results),
        )

    def __len__(self) -> int:
        return len(self.ids)

    @overload
    def __getitem__(self, at: int) -> Transition: ...
    @overload
    def __getitem__(self, at: slice) -> PlainSuccesses: ...
    def __getitem__(self, at: int | slice) -> Transition | PlainSuccesses:
        if not isinstance(at, slice):
            return self._expanded()[at]
        if at.indices(len(self)) == (0, len(self), 1):
            return self
        return PlainSuccesses(
            self.tokens[at],
            self.ids[at],
            self.numbers[at],
            self.attempts[at],
            self.started_ats[at],
            None if self.results is None else self.results[at],
        )

    def __iter__(self) -> Iterator[Transition]:
        return iter(self._expanded())

    def _expanded(self) -> list[Transition]:
        if self._transitions is None:
            succeeded, to = AttemptStatus.SUCCEEDED, State.SUCCEEDED
            results = self.results or [None] * len(self)
            rows = zip(
                self.tokens, self.ids, self.numbers, self.attempts, self.started_ats, results, strict=True
            )
            self._transitions = [
                Transition(token, job_id, number, succeeded, to, attempts, started_at, result=result)
                for token, job_id, number, attempts, started_at, result in rows
            ]
        return self._transitions


class SettleResult(Struct, frozen=True, gc=False):
    answer: SettleAnswer
    state: State | None = None  # where the job went
    run_at: int | None = None  # when it is runnable again
    recorded: AttemptStatus | None = None  # what the attempt's row already says, if it has one
    released: tuple[str, ...] = ()  # dependants that stopped waiting; a repeated settle reports them again
    at: int = 0  # the store's time
    cancelled: tuple[str, ...] = ()  # dependants that ended with it, by id; likewise


class ProgressNote(Struct, frozen=True):
    token: str
    job_id: str
    number: int
    progress: Progress


class StepNote(Struct, frozen=True):
    """The result of a durable step; the first one stored under a name stays."""

    token: str
    job_id: str
    number: int
    name: str
    result: str


Note = ProgressNote | StepNote
