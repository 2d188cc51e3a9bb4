"""The application that the simulated processes run, and the jobs that a seed gives it.

A job's script says what its handler does after how many failures; the last word goes on for ever.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Struct

from taskharbor import Context, Harbor, RetryAfter, RetryPolicy, Unrecoverable
from taskharbor.clock import MICROS_PER_SECOND
from taskharbor.records import Delivery, NewJob, Options

RETRY_AFTER_SECONDS = 1.5
POLICY = RetryPolicy(max_attempts=10, initial=0.4, maximum=3.0, multiplier=2.0, jitter=None)
QUEUES = ("default", "mail")
TAG = "red"
PARTS = 10  # of a handler that tells its progress

application = Harbor("memory://")


class Spec(Struct, frozen=True):
    """One job as the seed wants it."""

    id: str
    task: str
    script: tuple[str, ...]
    seconds: float  # that the handler takes
    at: int  # when it is enqueued
    queue: str = "default"
    priority: int = 0
    delay: int | None = None
    max_attempts: int = 3
    timeout: float | None = None
    delivery: Delivery | None = None
    expires_at: int | None = None
    key: str | None = None
    depends_on: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()

    @property
    def is_once(self) -> bool:
        return self.task == "once" or self.delivery is Delivery.AT_MOST_ONCE

    @property
    def is_poison(self) -> bool:
        return "poison" in self.script

    def action(self, failures: int) -> str:
        return self.script[min(failures, len(self.script) - 1)]

    def new_job(self) -> NewJob:
        payload = {"script": list(self.script), "seconds": self.seconds}
        if self.task == "act" and self.script == ("unfit",):
            payload = {"nonsense": 1}
        options = Options(
            max_attempts=self.max_attempts, timeout=self.timeout, retry=POLICY.to_dict(), tags=self.tags
        )
        return NewJob(
            self.id, self.task, msgspec.json.encode(payload).decode(), queue=self.queue, priority=self.priority,
            delay=self.delay, expires_at=self.expires_at, idempotency_key=self.key, delivery=self.delivery,
            options=options, depends_on=self.depends_on,
        )  # fmt: skip


# -- handlers ------------------------------------------------------------------------------------


@application.task(name="child")
async def child(parent: str) -> None:
    process = asyncio.get_running_loop().process  # type: ignore[attr-defined]
    process.world.observer.child_ran(parent)


@contextlib.contextmanager
def mistakes_are_seen(observer: Any) -> Iterator[None]:
    """What an observer does wrong inside a handler must not pass for a failure of the job."""
    try:
        yield
    except (AssertionError, AttributeError, LookupError, NameError, TypeError) as error:
        observer.wrong(f"the observer made a mistake: {error!r}")
        raise


async def perform(ctx: Context, script: list[str], seconds: float) -> str:
    process: Any = asyncio.get_running_loop().process  # type: ignore[attr-defined]
    observer = process.world.observer
    execution = ctx._execution
    action = script[min(ctx.retry_count, len(script) - 1)]
    with mistakes_are_seen(observer):
        observer.began(process, execution)
        process.world.handler_begins(process, seconds)
        if action == "child":
            observer.child_asked(execution, ctx.enqueue(child.s(parent=ctx.job.id)))
    try:
        if action == "progress":
            await _in_parts(ctx, seconds)
        elif seconds:
            await asyncio.sleep(seconds)
        match action:
            case "fail":
                raise ValueError("scripted")
            case "unrecoverable":
                raise Unrecoverable("scripted")
            case "retry_after":
                raise RetryAfter(RETRY_AFTER_SECONDS)
            case "slow":
                await asyncio.sleep(1000)
            case "poison":
                process.world.kill(process, by_itself=True)
                await asyncio.get_running_loop().create_future()
    except asyncio.CancelledError:
        if action == "deaf":
            await asyncio.sleep(0.3)
        else:
            if action == "slow":
                ctx.raise_if_stopped()  # ends it by the same rules as the cancellation would
            raise
    finally:
        observer.ended(execution)
    return action


async def _in_parts(ctx: Context, seconds: float) -> None:
    """Tell the progress, and ask after each part whether to stop: what a wrong clock would answer is seen at once."""
    for part in range(1, PARTS + 1):
        await asyncio.sleep(max(seconds, 0.01) / PARTS)
        ctx.progress(part / PARTS)
        ctx.raise_if_stopped()


@application.task(name="act")
async def act(ctx: Context, script: list[str], seconds: float) -> str:
    return await perform(ctx, script, seconds)


@application.task(name="once", delivery="at_most_once")
async def once(ctx: Context, script: list[str], seconds: float) -> str:
    return await perform(ctx, script, seconds)


# -- what a seed draws ---------------------------------------------------------------------------

_SCRIPTS: tuple[tuple[str, ...], ...] = (
    ("ok",), ("ok",), ("ok",), ("progress",), ("progress",), ("child",), ("deaf",), ("fail", "ok"),
    ("fail", "fail", "child"),
    ("fail",), ("unrecoverable",), ("retry_after", "ok"), ("slow", "ok"), ("slow",), ("fail", "unrecoverable"),
)  # fmt: skip


def _draw_timeout(chance: random.Random, script: tuple[str, ...]) -> float | None:
    if "slow" in script:
        return 0.5 + chance.random()
    return chance.choice((None, 6.0, 30.0) if "progress" in script else (None, None, 30.0))


def draw_specs(chance: random.Random, start: int, seed: int) -> list[Spec]:
    """A handful of jobs of all kinds, within the first few seconds."""
    specs: list[Spec] = []
    poison_left = 1 if chance.random() < 0.25 else 0
    together = chance.random() < 0.4  # many at the same moment: batches
    for index in range(chance.randint(3, 12)):
        task, script = "act", chance.choice(_SCRIPTS)
        delivery, key, expires_at = None, None, None
        draw = chance.random()
        if draw < 0.10:
            task = "once"
        elif draw < 0.2:
            delivery = Delivery.AT_MOST_ONCE
        elif draw < 0.23:
            script = ("unfit",)
        elif draw < 0.26:
            task, script = "stranger", ("ok",)
        elif draw < 0.45 and poison_left:
            poison_left, script = 0, ("poison",)
        if chance.random() < 0.1:
            key = "key"
        at = start + (0 if together else int(chance.random() * 4 * MICROS_PER_SECOND))
        if chance.random() < 0.05:
            expires_at = at + int((0.5 + chance.random() * 3) * MICROS_PER_SECOND)
        earlier = [spec.id for spec in specs if not spec.key]
        depends = (
            chance.sample(earlier, min(len(earlier), chance.randint(1, 2))) if chance.random() < 0.2 else []
        )
        specs.append(
            Spec(
                f"00000000-0000-7000-8000-{seed % 10**6:06d}{index:06d}",
                task,
                script,
                seconds=0.0 if chance.random() < 0.4 else chance.random() * chance.choice((0.05, 1.0, 4.0)),
                at=max(at, max((spec.at for spec in specs if spec.id in depends), default=0)),
                queue=chance.choice(QUEUES),
                priority=chance.choice((0, 0, 5, -5)),
                delay=int(chance.random() * 3 * MICROS_PER_SECOND) if chance.random() < 0.25 else None,
                max_attempts=chance.choice((1, 2, 3, 4)),
                timeout=_draw_timeout(chance, script),
                delivery=delivery,
                expires_at=expires_at,
                key=None if depends else key,
                depends_on=tuple(depends),
                tags=(TAG,) if chance.random() < 0.3 else (),
            )
        )
    return specs
