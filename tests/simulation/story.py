"""What the handlers of schedules and workflows do: acts, move by move, and what a seed draws of them.

An act is played for each number of failures, the last one for ever. Its moves:

    wait 0.5        take so long
    step a          a durable step of that name
    sleep z 2.5     `ctx.sleep`
    fail, fatal     raise what is retried, what is not
    hang            until the timeout
    die a           end the process, if step `a` was executed by this very attempt
    child           enqueue a child
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

from taskharbor import Context, Harbor, RetryPolicy, Unrecoverable
from tests.simulation import program

POLICY = RetryPolicy(max_attempts=10, initial=0.4, maximum=3.0, multiplier=2.0, jitter=None)
Act = list[str]


class Wanted:
    """What the options of a job in a story say, to whoever observes it."""

    __slots__ = ()
    options: dict[str, Any]

    @property
    def is_once(self) -> bool:
        return bool(self.options["delivery"] == "at_most_once")

    @property
    def timeout(self) -> float | None:
        return self.options.get("timeout")

    @property
    def most_attempts(self) -> int:
        return int(self.options["max_attempts"])


application = Harbor("memory://")


def declare(harbor: Harbor) -> Any:
    """The tasks, on a harbor of one's own: whoever stores a workflow needs them so. Gives `play`."""
    harbor.task(name="kid")(kid)
    harbor.task(name="mourn")(mourn)
    return harbor.task(name="play")(play)


async def kid(parent: str) -> None:
    _observer().child_ran(parent)


async def mourn(what: dict[str, Any]) -> None:
    _observer().mourned(what)


async def play(
    ctx: Context, taken: Any = None, label: str = "", acts: list[Act] | None = None, mends: bool = False
) -> Any:
    process: Any = asyncio.get_running_loop().process  # type: ignore[attr-defined]
    observer, execution = process.world.observer, ctx._execution
    claimed = execution.claimed
    with program.mistakes_are_seen(observer):
        observer.began(process, execution)
        observer.took(execution, taken)
    moves = ((acts or [[]])[min(ctx.retry_count, len(acts or [[]]) - 1)])[:]
    if mends and claimed.first_number > 1:  # somebody has retried it
        moves = [move for move in moves if move not in ("fail", "fatal", "hang")]
    try:
        with program.mistakes_are_seen(observer):
            for move in moves:
                await _move(process, ctx, move.split())
    finally:
        observer.ended(execution)
    return [label, claimed.number]


async def _move(process: Any, ctx: Context, move: list[str]) -> None:
    observer, execution = process.world.observer, ctx._execution
    match move:
        case ["wait", seconds]:
            await asyncio.sleep(float(seconds))
        case ["step", name]:

            async def work() -> Any:
                value = observer.step_executed(execution, name)
                await asyncio.sleep(0.01)
                return value

            observer.step_returned(execution, name, await ctx.step(name, work))
        case ["sleep", name, seconds]:
            await ctx.sleep(name, float(seconds))
            observer.awoke(process, execution, name)
        case ["fail"]:
            raise ValueError("scripted")
        case ["fatal"]:
            raise Unrecoverable("scripted")
        case ["hang"]:
            await asyncio.sleep(1000)
        case ["die", name]:
            if observer.has_executed(execution, name):
                process.world.kill(process, by_itself=True)
                await asyncio.get_running_loop().create_future()
        case ["child"]:
            observer.child_asked(execution, ctx.enqueue(application.tasks["kid"].s(parent=ctx.job.id)))
        case _:
            raise AssertionError(f"no such move: {move}")


def _observer() -> Any:
    return asyncio.get_running_loop().process.world.observer  # type: ignore[attr-defined]


declare(application)

# -- what a seed draws ---------------------------------------------------------------------------

ENDINGS: tuple[list[Act], ...] = (
    [[]], [[]], [[]], [["fail"], []], [["fail"], ["fail"], []], [["fail"]], [["fatal"]], [["hang"], []],
)  # fmt: skip


def draw_acts(chance: random.Random, *, may_sleep: bool = True) -> list[Act]:
    """A short play: some work with steps, perhaps failures on the way."""
    steps = [f"step {name}" for name in "abc"[: chance.choice((0, 0, 1, 2, 3))]]
    if may_sleep and chance.random() < 0.25:
        at = chance.randrange(len(steps) + 1)
        steps.insert(at, f"sleep z {chance.choice((0.3, 1.0, 2.5))}")
    if chance.random() < 0.8:
        at = chance.randrange(len(steps) + 1)
        steps.insert(at, f"wait {chance.random() * chance.choice((0.05, 0.5, 1.5, 3.0)):.3f}")
    if chance.random() < 0.15:
        steps.append("child")
    endings = chance.choice(ENDINGS)
    acts: list[Act] = []
    for ending in endings:  # a failure comes anywhere: before, between or behind the steps
        at = chance.randrange(len(steps) + 1) if ending else len(steps)
        acts.append([*steps[:at], *ending])
    return acts


def hangs(acts: list[Act]) -> bool:
    return any("hang" in act for act in acts)


def draw_timeout(chance: random.Random, acts: list[Act]) -> float | None:
    return 0.5 + chance.random() if hangs(acts) else chance.choice((None, None, 30.0))
