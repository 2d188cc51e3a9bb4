"""The state machine: the same random story told to a driver and to the memory reference.

After every step all that can be read from the two is compared.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, ClassVar, TypeVar
from unittest import TestCase

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from taskharbor.conformance import stories
from taskharbor.conformance.comparison import (
    differences,
    repeated_claim_promised,
    settled_promised,
    whole,
)
from taskharbor.conformance.store import MINUTE, Factory, Held, Store, opened
from taskharbor.conformance.stories import HAND_BACK, QUEUES, SUCCESS, Features, Outcome
from taskharbor.drivers.base import (
    Action,
    Cancel,
    Claimed,
    Extension,
    Note,
    Operation,
    ProgressNote,
    SettleAnswer,
    StepNote,
    Transition,
)
from taskharbor.drivers.capabilities import Audit, Capability, Holds, Steps, Upkeep, Workflows
from taskharbor.drivers.memory import MemoryDriver
from taskharbor.errors import ConfigurationError
from taskharbor.records import NewJob, NewWorkflow, Progress, State
from taskharbor.rules.lifecycle import TERMINAL

T = TypeVar("T")
Draw = st.DataObject
Verb = Callable[["DriverMachine", Draw], None]

EXAMPLES = 60
EXAMPLES_VARIABLE = "TASKHARBOR_CONFORMANCE_EXAMPLES"

VERBS: dict[str, Verb] = {}
WEIGHTS: dict[str, int] = {}
NEEDS_A_LEASE: set[str] = set()
NEEDS_A_CLAIM: set[str] = set()
OFFERED: dict[str, type[Capability]] = {}  # the verbs that not every store has


def verb(
    weight: int, needs: set[str] | None = None, offered: type[Capability] | None = None
) -> Callable[[Verb], Verb]:
    """Register something that may happen in a story, `weight` times as often as what has the weight 1."""

    def register(function: Verb) -> Verb:
        VERBS[function.__name__] = function
        WEIGHTS[function.__name__] = weight
        if needs is not None:
            needs.add(function.__name__)
        if offered is not None:
            OFFERED[function.__name__] = offered
        return function

    return register


class DriverMachine(RuleBasedStateMachine):
    """What may happen, step by step; `case_for` binds it to a driver.

    All verbs are one rule: of several rules Hypothesis switches some off for each story, half of them on the
    average, and hardly anything happens to a job when most of the verbs are missing.
    """

    factory: ClassVar[Factory]

    def __init__(self) -> None:
        super().__init__()
        self._cleanup = ExitStack()
        self._subject = self._cleanup.enter_context(opened(type(self).factory))
        self._reference = self._cleanup.enter_context(opened(MemoryDriver))
        self._reference.capabilities = self._subject.capabilities
        self._missing = {name for name, each in OFFERED.items() if each not in self._subject.capabilities}
        self._ids = 0
        self._tokens = 0
        self._jobs: list[str] = []  # ids, of jobs that exist or have existed
        self._claims: list[Held] = []  # every job under every lease there was: most of them stale
        self._live: dict[str, Held] = {}  # by job id: what could be settled, if its lease has not expired
        self._collectors: set[str] = set()
        self._action: Action | None = None  # the latest one

    def teardown(self) -> None:
        self._cleanup.close()

    @initialize(batch=stories.batches)
    def begin(self, batch: list[list[Features]]) -> None:
        self._enqueue([self._new_job(features) for features in batch])

    @rule(data=st.data())
    def step(self, data: Draw) -> None:
        impossible = (set() if self._live else NEEDS_A_LEASE) | (set() if self._claims else NEEDS_A_CLAIM)
        impossible |= self._missing
        possible = [name for name, weight in WEIGHTS.items() if name not in impossible for _ in range(weight)]
        VERBS[data.draw(st.sampled_from(possible), label="verb")](self, data)

    @invariant()
    def both_tell_the_same(self) -> None:
        self.both(lambda store: store.everything())
        self.both(lambda store: [store.counts(queue) for queue in QUEUES])
        # Of the story itself, not of the driver: it knows who holds what.
        assert set(self._live) == set(self._reference.listed_ids(state=State.RUNNING))

    # -- telling both --

    def both(self, act: Callable[[Store], T], promised: Callable[[T], object] = whole) -> T:
        """Let both do it, and compare what was promised of their answers; the reference's."""
        expected, answer = act(self._reference), act(self._subject)
        found = list(differences(promised(expected), promised(answer)))
        assert not found, "\n".join(["the driver differs from the reference:", *found])
        return expected

    def both_refuse(self, act: Callable[[Store], object]) -> None:
        for store in (self._reference, self._subject):
            try:
                act(store)
            except ConfigurationError:
                continue
            raise AssertionError(f"{type(store.driver).__name__} should have refused this")

    @property
    def now(self) -> int:
        return self._reference.now

    def _new_id(self) -> str:
        self._ids += 1
        return f"019b76da-a800-7000-8000-{self._ids:012x}"

    def _new_token(self) -> str:
        self._tokens += 1
        return f"worker-{self._tokens % 3}/{self._tokens}"

    def _new_job(self, features: list[Features], **more: Any) -> NewJob:
        return stories.new_job(self._new_id(), {**stories.merged(features), **more}, self.now)

    # -- whom a verb is about --

    def _job(self, data: Draw) -> str:
        """Mostly one that exists, sometimes one that is gone."""
        kept = self._reference.listed_ids()
        gone = [job_id for job_id in self._jobs if job_id not in kept]
        return data.draw(st.sampled_from([*kept[::-1], *gone[-2:]] or [self._new_id()]), label="job")

    def _held(self, data: Draw) -> Held:
        return data.draw(st.sampled_from([held for _, held in sorted(self._live.items())]), label="held")

    def _claim(self, data: Draw) -> Held:
        return data.draw(st.sampled_from(self._claims), label="claimed once")

    # -- enqueue --

    @verb(4)
    def enqueue(self, data: Draw) -> None:
        batch = [self._new_job(features) for features in data.draw(stories.batches, label="batch")]
        self._enqueue(batch + batch[:1] if data.draw(stories.rarely, label="first twice") else batch)

    @verb(3, offered=Workflows)
    def enqueue_dependant(self, data: Draw) -> None:
        """Of one or two stored jobs, and of one that comes after it in the same batch."""
        known = [
            job_id for job_id in {self._job(data): 1, self._job(data): 2} if self._reference.find(job_id)
        ]
        features = data.draw(stories.features_of_jobs, label="features")
        if not data.draw(stories.rarely, label="and on one behind it"):
            return self._enqueue([self._new_job(features, depends_on=tuple(known))])
        other = self._new_job([])
        return self._enqueue([self._new_job(features, depends_on=(other.id, *known)), other])

    @verb(1, offered=Workflows)
    def enqueue_dependant_of_an_unknown_job(self, data: Draw) -> None:
        features = data.draw(stories.features_of_jobs, label="features")
        batch = [self._new_job(features), self._new_job([], depends_on=(self._new_id(),))]
        self.both_refuse(lambda store: store.enqueue_all(*batch))

    @verb(1)
    def enqueue_under_a_known_id(self, data: Draw) -> None:
        features = data.draw(stories.features_of_jobs, label="features")
        self._enqueue([self._new_job(features, id=self._job(data), idempotency_key=None)])

    @verb(1, offered=Workflows)
    def enqueue_crosswise(self, data: Draw) -> None:
        """Few ids under few keys, and one that depends on such an id."""
        ids, key = [self._new_id(), self._new_id()], st.sampled_from((None, "k", "c", "d"))
        pairs = data.draw(
            st.lists(st.tuples(st.sampled_from(ids), key), min_size=2, max_size=4), label="pairs"
        )
        batch = [self._new_job([], id=job_id, idempotency_key=key) for job_id, key in pairs]
        self._enqueue([*batch, self._new_job([], depends_on=(pairs[-1][0],))])

    @verb(3, offered=Workflows)
    def enqueue_workflow(self, data: Draw) -> None:
        """A few jobs, most of which depend on some before them; often under a key that is taken."""
        shape = data.draw(st.lists(stories.dependencies, max_size=4), label="shape")
        key = data.draw(st.sampled_from((None, None, "w", "'; --")), label="key")
        workflow = NewWorkflow(self._new_id(), "{}", key)
        jobs: list[NewJob] = []
        for index, (before, features) in enumerate(shape):
            depends_on = tuple(jobs[other].id for other in before if other < index)
            jobs.append(self._new_job(features, depends_on=depends_on, idempotency_key=None))
        answer = self.both(lambda store: store.enqueue_workflow(workflow, jobs))
        if not answer.existed:
            self._jobs += [job.id for job in jobs]

    def _enqueue(self, batch: list[NewJob]) -> None:
        answers = self.both(lambda store: store.enqueue_all(*batch))
        self._jobs += dict.fromkeys(answer.id for answer in answers if not answer.existed)

    # -- claim --

    @verb(4)
    def claim(self, data: Draw) -> None:
        self._ask(**data.draw(stories.claim_requests, label="request"))

    @verb(4)
    def work(self, data: Draw) -> None:
        """What a worker does most of the time: claim what there is, and finish nearly all of it."""
        claimed = self._ask(lease=data.draw(stories.lease_times, label="lease"), limit=10, once_limit=10)
        finished = claimed[data.draw(st.integers(0, 2), label="unfinished") :]
        self._settle([self._reference.transition(held, *SUCCESS) for held in finished])

    def _ask(self, **fields: Any) -> list[Held]:
        token = self._new_token()
        if Holds not in self._subject.capabilities:
            fields.update(aside=(), recall=())
        return self._hold(token, self.both(lambda store: store.ask(token, **fields)).jobs)

    def _hold(self, token: str, jobs: Sequence[Claimed]) -> list[Held]:
        held = [Held(token, job) for job in jobs]
        self._claims += held
        self._live.update({one.id: one for one in held})
        return held

    @verb(1, NEEDS_A_LEASE)
    def ask_again(self, data: Draw) -> None:
        """Repeat the claim, or the collection, that the lease comes from."""
        token = self._held(data).token
        if token in self._collectors:
            self.both(lambda store: store.take_expired(token))
        else:
            self.both(lambda store: store.ask(token), repeated_claim_promised)

    # -- leases --

    @verb(2, NEEDS_A_LEASE)
    def extend(self, data: Draw) -> None:
        token = self._held(data).token
        mine = [job_id for job_id, held in sorted(self._live.items()) if held.token == token]
        some = tuple(data.draw(st.lists(st.sampled_from(mine), unique=True), label="some of its jobs"))
        extension = Extension(
            token,
            data.draw(stories.lease_times, label="lease"),
            running=tuple((job_id, self.now - 1) for job_id in some) if data.draw(st.booleans()) else (),
            at_most_once=some if data.draw(stories.rarely) else (),
        )
        self.both(lambda store: store.beat(extension))

    @verb(2, NEEDS_A_CLAIM)
    def extend_whatever(self, data: Draw) -> None:
        lease = data.draw(stories.lease_times, label="lease")
        extensions = [Extension("stranger/1", lease), Extension(self._claim(data).token, lease)]
        self.both(lambda store: store.beat(*extensions))

    @verb(1, NEEDS_A_CLAIM)
    def look(self, data: Draw) -> None:
        tokens = sorted({"stranger/1", self._claim(data).token, self._claim(data).token})
        self.both(lambda store: store.look(*tokens).jobs)

    @verb(3, NEEDS_A_LEASE)
    def take_expired(self, data: Draw) -> None:
        token, lease = self._new_token(), data.draw(stories.lease_times, label="lease")
        expired = self.both(lambda store: store.take_expired(token, lease))
        if expired is not None:
            self._collectors.add(token)
            self._hold(token, expired.jobs)

    # -- settle --

    @verb(6, NEEDS_A_LEASE)
    def settle(self, data: Draw) -> None:
        """One or two outcomes of what is held, which may be of the same job."""
        outcomes = data.draw(st.lists(stories.outcomes, min_size=1, max_size=2), label="outcomes")
        self._settle([self._transition(self._held(data), outcome) for outcome in outcomes])

    @verb(3, NEEDS_A_LEASE)
    def settle_all(self, data: Draw) -> None:
        """Finish all that is held, for good or until its next occurrence, or hand it back."""
        outcome = data.draw(
            st.sampled_from(((SUCCESS, []), (HAND_BACK, []), (SUCCESS, [{"occurrence": (0, 0)}]))),
            label="outcome",
        )
        self._settle([self._transition(held, outcome) for _, held in sorted(self._live.items())])

    @verb(2, NEEDS_A_CLAIM)
    def settle_whatever(self, data: Draw) -> None:
        """Stale, repeated and forged ones."""
        claimed = self._claim(data)
        proofs: list[dict[str, Any]] = [
            {},
            {"token": "stranger/1"},
            {"number": claimed.number - 1},
            {"number": claimed.number + 1},
        ]
        proof = data.draw(st.sampled_from(proofs), label="proof")
        self._settle([self._transition(claimed, data.draw(stories.outcomes, label="outcome"), **proof)])

    def _transition(self, held: Held, outcome: Outcome, **proof: Any) -> Transition:
        (status, to), features = outcome
        fields = stories.outcome(to, stories.merged(features), held.job.version, self.now)
        if to is not State.READY or Holds not in self._subject.capabilities:
            fields.pop("aside", None)
        if "dead_letter" in fields:
            fields["dead_letter"] = self._new_job([])
        fields["inserts"] = tuple(self._new_job([child]) for child in fields.get("inserts", ()))
        return self._reference.transition(held, status, to, **{**fields, **proof})

    def _settle(self, batch: list[Transition]) -> None:
        rows = {(row.job_id, row.number) for each in batch for row in self._reference.history(each.job_id)}
        promised = partial(settled_promised, batch, rows)
        answers = self.both(lambda store: store.settle_all(*batch), promised)
        for each, settled in zip(batch, answers, strict=True):
            if settled.answer is SettleAnswer.DONE and (each.job_id, each.number) not in rows:
                self._live.pop(each.job_id, None)
        born = [job.id for each in batch for job in each.inserts]
        born += [each.dead_letter.id for each in batch if each.dead_letter is not None]
        self._jobs += [job_id for job_id in born if self._reference.find(job_id)]

    # -- notes --

    @verb(3, NEEDS_A_LEASE, Steps)
    def note(self, data: Draw) -> None:
        held = self._held(data)
        name = data.draw(st.sampled_from(("charge", "'")), label="step")
        step = StepNote(held.token, held.id, held.number, name, f"{self._tokens}")
        self._note(step, ProgressNote(held.token, held.id, held.number, Progress(1 / 3, name)))

    @verb(1, NEEDS_A_CLAIM, Steps)
    def note_whatever(self, data: Draw) -> None:
        claimed, off = self._claim(data), data.draw(st.sampled_from((0, 1)), label="number off by")
        self._note(StepNote(claimed.token, claimed.id, claimed.number + off, "late", "0"))

    def _note(self, *notes: Note) -> None:
        self.both(lambda store: store.run(store.stepping.note(notes, now=store.now)))

    # -- operators --

    @verb(5)
    def operate(self, data: Draw) -> None:
        operation = data.draw(stories.operations, label="operation")
        unknown = [self._new_id()] if data.draw(stories.rarely, label="an unknown one too") else []
        self._operate(operation, [self._job(data), *unknown, self._job(data)])

    @verb(2, offered=Audit)
    def operate_as_an_action(self, data: Draw) -> None:
        """Each action is one of its own, or a further part of the latest one."""
        operation = data.draw(stories.operations, label="operation")
        if self._action is None or data.draw(st.booleans(), label="a new action"):
            self._action = Action(self._new_id(), "job.update", "ana", details="{}")
        self._operate(operation, [self._job(data), self._job(data)], self._action)

    @verb(2)
    def operate_on_all(self, data: Draw) -> None:
        operation = data.draw(stories.operations_on_all, label="operation")
        self._operate(operation, self._reference.listed_ids())

    @verb(1, NEEDS_A_LEASE)
    def ask_to_end(self, data: Draw) -> None:
        self._operate(Cancel(), [self._held(data).id])

    def _operate(self, operation: Operation, job_ids: list[str], action: Action | None = None) -> None:
        operation = stories.operation_at(operation, self.now)
        given = {} if action is None else {"action": action}
        self.both(lambda store: store.run(store.driver.operate(operation, job_ids, now=store.now, **given)))

    @verb(2)
    def pause(self, data: Draw) -> None:
        queue = data.draw(stories.queue_names, label="queue")
        paused = data.draw(st.booleans(), label="paused")
        self.both(lambda store: store.run(store.driver.pause(queue, paused)))

    @verb(1, offered=Holds)
    def hold(self, data: Draw) -> None:
        kind, name = data.draw(stories.holds, label="hold")
        self.both(lambda store: store.hold(kind, name))

    @verb(1, offered=Holds)
    def release(self, data: Draw) -> None:
        kind, name = data.draw(stories.holds, label="hold")
        self.both(lambda store: store.release(kind, name))

    @verb(2, NEEDS_A_LEASE, Holds)
    def put_aside(self, data: Draw) -> None:
        """What workers do with all that they do not know or may not begin."""
        label = data.draw(st.sampled_from(stories.ASIDE), label="label")
        self._settle(
            [
                self._transition(held, (HAND_BACK, [{"aside": label}]))
                for _, held in sorted(self._live.items())
            ]
        )

    @verb(1, offered=Upkeep)
    def expire(self, data: Draw) -> None:
        limit = data.draw(st.integers(1, 3), label="limit")
        self.both(lambda store: store.expire(limit))

    @verb(1, offered=Upkeep)
    def prune(self, data: Draw) -> None:
        states = data.draw(
            st.sampled_from((tuple(TERMINAL), (State.SUCCEEDED,), (State.DEAD,))), label="states"
        )
        before = self.now - data.draw(st.sampled_from((0, -1, MINUTE)), label="age")
        limit = data.draw(st.sampled_from((1, 2, 100)), label="limit")
        self.both(lambda store: store.prune(dict.fromkeys(states, before), limit))

    # -- time and reading --

    @verb(4)
    def pass_time(self, data: Draw) -> None:
        micros = data.draw(stories.passing_times, label="micros")
        self.both(lambda store: store.pass_time(micros))

    @verb(1)
    def read(self, data: Draw) -> None:
        job_id, limit = self._job(data), data.draw(st.integers(1, 3), label="limit")
        where = data.draw(stories.filters, label="where")
        listed = self.both(lambda store: store.listed_ids(page_size=limit, **where))
        counted = self.both(lambda store: store.counted(**where))
        assert counted == len(listed)
        self.both(lambda store: store.history(job_id, limit))


def case_for(factory: Factory, examples: int | None) -> type[TestCase]:
    machine = bound(factory)
    case: type[TestCase] = machine.TestCase
    case.settings = machine_settings(examples)  # type: ignore[attr-defined]
    return case


def bound(factory: Factory) -> type[DriverMachine]:
    return type("Machine", (DriverMachine,), {"factory": staticmethod(factory)})


def machine_settings(examples: int | None, **more: Any) -> settings:
    """As many stories as were asked for here, else in the environment; the rest is Hypothesis's active profile's."""
    more["max_examples"] = examples or int(os.environ.get(EXAMPLES_VARIABLE, EXAMPLES))
    # Without Hypothesis's search for an explanation: the shortest story is one, and the search takes minutes.
    more.setdefault("phases", [phase for phase in Phase if phase is not Phase.explain])
    return settings(deadline=None, suppress_health_check=list(HealthCheck), **more)
