"""A simulated world of workflows: chains, groups and chords whose members fail, are cancelled and begun again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from taskharbor import chain, chord, group
from taskharbor.drivers.base import member_id
from taskharbor.records import State
from tests.simulation import story
from tests.simulation.link import Rates
from tests.simulation.story_world import StoryWorld, at_random
from tests.simulation.workflow_observer import WorkflowObserver

if TYPE_CHECKING:
    from tests.simulation.world import Process

VERBS = (
    "cancel", "retry", "retry", "cancel member", "retry member", "retry member", "delete member", "discard",
    "stop the queue",
)  # fmt: skip
MEMBERS_MAX = 9


class MemberSpec(story.Wanted, Struct):
    """One job of a workflow as the seed wants it; whom it waits for and what it takes is worked out here."""

    label: str
    acts: list[story.Act]
    mends: bool  # it succeeds once somebody has retried it
    options: dict[str, Any]
    id: str = ""
    workflow: str = ""
    depends_on: tuple[str, ...] = ()
    takes: Any = None  # ids, nested as the results are


Tree = Any  # a MemberSpec, or ("chain" | "group" | "chord", [trees])


class WorkflowSpec(Struct):
    id: str
    at: int
    tree: Tree
    on_failure: str
    has_failure_task: bool
    members: list[MemberSpec] = []

    def place(self) -> None:
        """Number the members as they come, and say whom each waits for."""
        self.members = []
        self._place(self.tree, (None, ()))

    def _place(self, tree: Tree, before: tuple[Any, tuple[str, ...]]) -> tuple[Any, tuple[str, ...]]:
        if isinstance(tree, MemberSpec):
            tree.id, tree.workflow = member_id(self.id, len(self.members)), self.id
            tree.takes, tree.depends_on = before
            self.members.append(tree)
            return tree.id, (tree.id,)
        kind, parts = tree
        if kind == "chain":
            for part in parts:
                before = self._place(part, before)
            return before
        ends = [self._place(part, before) for part in (parts if kind == "group" else parts[:-1])]
        together = [value for value, _ in ends], tuple(each for _, after in ends for each in after)
        return together if kind == "group" else self._place(parts[-1], together)


class WorkflowWorld(StoryWorld):
    observer: WorkflowObserver
    troubled: tuple[float, ...] = (0.0, 0.3, 0.6)  # how many members have anything but a simple life

    def _new_observer(self) -> WorkflowObserver:
        return WorkflowObserver(self)

    def _draw_specs(self) -> list[MemberSpec]:
        self.workflow_specs = [self._draw_workflow(index) for index in range(self.chance.choice((1, 1, 2)))]
        return [member for spec in self.workflow_specs for member in spec.members]

    def spec_of(self, workflow_id: str) -> WorkflowSpec:
        return next(spec for spec in self.workflow_specs if spec.id == workflow_id)

    def _draw_workflow(self, index: int) -> WorkflowSpec:
        chance = self.chance
        self._left = MEMBERS_MAX
        self._troubled = chance.choice(self.troubled)
        tree = self._draw_tree(0)
        workflow_id = f"00000000-0000-7000-8000-{index + 1:06x}000000"
        has_failure_task = chance.random() < 0.3
        on_failure = chance.choice(("wait", "wait", "cancel"))
        spec = WorkflowSpec(workflow_id, at_random(chance, 2), tree, on_failure, has_failure_task)
        spec.place()
        return spec

    def _draw_tree(self, depth: int) -> Tree:
        chance = self.chance
        if depth and (depth == 3 or self._left < 3 or chance.random() < 0.6):
            return self._draw_member()
        kind = chance.choice(("chain", "group", "chord", "chord"))
        parts = [self._draw_tree(depth + 1) for _ in range(chance.choice((1, 2, 2, 3)) + (kind == "chord"))]
        return kind, parts

    def _draw_member(self) -> MemberSpec:
        chance = self.chance
        self._left -= 1
        label = f"member-{MEMBERS_MAX - self._left}"
        acts: list[story.Act] = [[]]
        once = False
        if chance.random() < self._troubled:
            once = chance.random() < 0.1
            acts = self._draw_acts(once)
        options: dict[str, Any] = {
            "max_attempts": chance.choice((1, 2, 3)),
            "retry": story.POLICY,
            "queue": chance.choice(("default", "mail")),
            "delivery": "at_most_once" if once else "at_least_once",
        }
        timeout = story.draw_timeout(chance, acts)
        if timeout is not None:
            options["timeout"] = timeout
        return MemberSpec(label, acts, chance.random() < 0.7, options)

    def _draw_acts(self, once: bool) -> list[story.Act]:
        return story.draw_acts(self.chance, may_sleep=not once)

    # -- people --

    def _composed(self, play: Any, tree: Tree) -> Any:
        if isinstance(tree, MemberSpec):
            return play.using(**tree.options).s(label=tree.label, acts=tree.acts, mends=tree.mends)
        kind, parts = tree
        composed = [self._composed(play, part) for part in parts]
        if kind == "chain":
            return chain(*composed)
        return group(composed) if kind == "group" else chord(composed[:-1], composed[-1])

    async def _produce(self, process: Process) -> None:
        process.harbor.tasks.clear()
        play = story.declare(process.harbor)
        for spec in self.workflow_specs:
            await self.until(spec.at)
            more = {"failure_task": process.harbor.tasks["mourn"].s()} if spec.has_failure_task else {}
            whole = self._composed(play, spec.tree).using(id=spec.id, on_failure=spec.on_failure, **more)
            await self.insist(whole.aenqueue)

    async def _operate(self, process: Process) -> None:
        harbor, chance = process.harbor, self.chance
        async for _ in self.moments(8, 3):
            spec = chance.choice(self.workflow_specs)
            member = chance.choice(spec.members)
            with self.whatever_comes():
                match chance.choice(VERBS):
                    case "cancel" if chance.random() < 0.4:
                        await harbor.workflows.acancel(spec.id)
                    case "retry":
                        await harbor.workflows.aretry(spec.id, force=True)
                    case "cancel member":
                        await harbor.jobs.acancel(member.id)
                    case "retry member":
                        await harbor.jobs.aretry(member.id, force=True)
                    case "delete member":
                        await harbor.jobs.adelete(member.id)
                    case "discard":
                        await harbor.dlq.adiscard(member.id)
                    case "stop the queue":
                        await harbor.queues.apause("mail")
                        await self.until(self.universe.now + int(chance.random() * 2e6))
                        await harbor.queues.aresume("mail")

    # -- the end --

    def _is_done(self) -> bool:
        """Nothing goes on; who waits does so for one that has ended without success, which is judged all the time."""
        counts = self.ask("counts", now=self.universe.now)
        if any(counts[state] for state in (State.READY, State.SCHEDULED, State.RUNNING)):
            return False
        return not counts[State.WAITING] or self.observer.all_waiting_are_stuck()


class StepsWorld(WorkflowWorld):
    """A few jobs with many steps, in processes that die between any two of them."""

    troubled = (1.0,)

    def __init__(self, seed: int, store: Any = None) -> None:
        super().__init__(seed, store)
        self.max_losses = 2
        self.crashes_left = 5

    def _draw_rates(self) -> Rates:
        rates = replace(super()._draw_rates(), crash=self.chance.choice((0.02, 0.1)))
        return replace(rates, freeze=self.chance.choice((0.0, 0.06)), late=self.chance.choice((0.0, 0.1)))

    def _draw_tree(self, depth: int) -> Tree:
        return "group", [self._draw_member() for _ in range(self.chance.choice((1, 1, 2)))]

    def _draw_acts(self, once: bool) -> list[story.Act]:
        """Each of its steps may be the last thing that a process does."""
        if once or self.chance.random() < 0.5:
            return story.draw_acts(self.chance, may_sleep=not once)
        moves = [move for name in "abcde" for move in (f"step {name}", f"die {name}")]
        if self.chance.random() < 0.5:
            moves.insert(self.chance.randrange(4), f"sleep z {1 + 14 * self.chance.random():.1f}")
        return [[*moves, "fatal"]] if self.chance.random() < 0.3 else [moves]
