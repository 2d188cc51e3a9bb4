"""Garbage: attempts leave none, and only processes of `taskharbor worker` collect it less often."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest

from taskharbor import Context, Harbor
from taskharbor.worker.garbage import DEFAULT_THRESHOLDS, YOUNG_OBJECTS, collecting_less_often
from taskharbor.worker.pipeline.execution import Execution


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def executions_in_memory() -> int:
    return sum(isinstance(each, Execution) for each in gc.get_objects())


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("kind", ["async", "sync", "async with a context", "sync with a context"])
async def test_an_attempt_leaves_no_reference_cycle(memory: Harbor, drained: Any, kind: str) -> None:
    async def plain() -> None: ...

    def in_thread() -> None: ...

    async def with_context(ctx: Context) -> None:
        ctx.raise_if_stopped()

    def in_thread_with_context(ctx: Context) -> None:
        ctx.raise_if_stopped()

    kinds: dict[str, Any] = {
        "async": plain,
        "sync": in_thread,
        "async with a context": with_context,
        "sync with a context": in_thread_with_context,
    }
    task = memory.task(kinds[kind])
    before = executions_in_memory()
    await task.aenqueue_many([{}] * 20)
    await drained(memory)
    assert (await memory.jobs.acounts())["succeeded"] == 20
    assert executions_in_memory() <= before + 1  # an idle slot may still refer to its last one


async def test_a_worker_inside_an_application_leaves_the_collector_alone(
    memory: Harbor, drained: Any
) -> None:
    settings: list[Any] = []

    @memory.task
    async def look() -> None:
        settings.append((gc.get_threshold(), gc.get_freeze_count()))

    before = (gc.get_threshold(), gc.get_freeze_count())
    await look.aenqueue()
    await drained(memory)
    assert settings == [before]


@pytest.fixture
def default_thresholds() -> Iterator[None]:
    """Python's own thresholds, whatever a library has set in this process."""
    before = gc.get_threshold()
    gc.set_threshold(*DEFAULT_THRESHOLDS)
    yield
    gc.set_threshold(*before)


@pytest.mark.usefixtures("default_thresholds")
def test_a_worker_process_collects_less_often_while_it_works() -> None:
    before = gc.get_threshold()
    with collecting_less_often():
        assert gc.get_threshold() == (YOUNG_OBJECTS, *before[1:])
        assert gc.get_freeze_count() > 0
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0


@pytest.mark.usefixtures("default_thresholds")
def test_the_option_leaves_the_collector_alone() -> None:
    gc.unfreeze()
    before = gc.get_threshold()
    with collecting_less_often(False):
        assert gc.get_threshold() == before
        assert gc.get_freeze_count() == 0


def test_an_application_s_own_thresholds_stay() -> None:
    before = gc.get_threshold()
    gc.set_threshold(1_234, 5, 6)
    try:
        with collecting_less_often():
            assert gc.get_threshold() == (1_234, 5, 6)
    finally:
        gc.set_threshold(*before)
