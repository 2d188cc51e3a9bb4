"""Declaring tasks: what a name is, what a function must look like, what is refused and when."""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import UNSET

from taskharbor import ConfigurationError, Context, Harbor, PayloadError, RetryPolicy, presets

MODULE = __name__


def plain(x: int, y: int = 2) -> int:
    """Adds."""
    return x + y


async def later(x: int) -> int:
    return x * 2


def test_a_bare_decorator_declares_a_task_under_module_and_function(harbor: Harbor):
    task = harbor.task(plain)
    assert task.name == f"{MODULE}.plain"
    assert harbor.tasks[task.name] is task


def test_a_decorator_with_options_declares_a_task_under_the_name_given(harbor: Harbor):
    task = harbor.task(name="math:add", queue="math", priority=7)(plain)
    assert task.name == "math:add"
    job = task.enqueue(1)
    assert (job.task, job.queue, job.priority) == ("math:add", "math", 7)


def test_a_nested_function_is_named_without_its_locals(harbor: Harbor):
    @harbor.task
    def inner() -> None: ...

    assert inner.name == f"{MODULE}.test_a_nested_function_is_named_without_its_locals.inner"


@pytest.mark.parametrize("how", [["tasks.py"], ["-m", "tasks"]])
def test_a_task_of_a_script_has_the_name_it_would_have_when_imported(how: list[str], tmp_path: Path):
    (tmp_path / "tasks.py").write_text(
        "from taskharbor import Harbor\n"
        "harbor = Harbor('memory://')\n"
        "@harbor.task\n"
        "def send(): ...\n"
        "print(send.name)\n"
    )
    run = subprocess.run(
        [sys.executable, *how], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True
    )
    assert run.stdout == "tasks.send\n"


def test_calling_a_task_calls_the_function(harbor: Harbor):
    task = harbor.task(plain)
    assert task(1) == 3
    assert task(1, y=5) == 6
    assert harbor.jobs.counts()["ready"] == 0


async def test_calling_an_async_task_awaits_the_function(harbor: Harbor):
    task = harbor.task(later)
    assert await task(4) == 8


def test_calling_with_a_context_passes_it_on(harbor: Harbor):
    @harbor.task
    def with_context(ctx: Context, x: int) -> tuple[Any, int]:
        return ctx, x

    marker: Any = object()
    assert with_context(marker, 1) == (marker, 1)


def test_calling_wrongly_fails_as_the_function_does(harbor: Harbor):
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'x'"):
        harbor.task(plain)()  # type: ignore[call-arg]


def test_a_task_keeps_the_name_and_the_docstring_of_its_function(harbor: Harbor):
    task = harbor.task(name="math:add")(plain)
    assert (task.__name__, task.__doc__, task.__module__) == ("plain", "Adds.", MODULE)
    assert "math:add" in repr(task)


def test_two_functions_cannot_have_one_name(harbor: Harbor):
    first = harbor.task(name="x")(plain)
    with pytest.raises(ConfigurationError, match=r"two tasks are called 'x'.*plain.*later.*another name"):
        harbor.task(name="x")(later)
    assert harbor.tasks["x"] is first


def test_two_functions_of_one_name_in_different_places_are_two_functions(harbor: Harbor):
    def one() -> Callable[..., Any]:
        def handler() -> None: ...

        return handler

    def two() -> Callable[..., Any]:
        def handler() -> None: ...

        return handler

    harbor.task(name="x")(one())
    with pytest.raises(ConfigurationError, match="two tasks are called 'x'"):
        harbor.task(name="x")(two())


def test_the_same_function_may_be_declared_again(harbor: Harbor):
    harbor.task(name="x")(plain)
    again = harbor.task(name="x", queue="other")(plain)
    assert again.enqueue(1).queue == "other"
    assert harbor.tasks["x"] is again


def test_jobs_may_be_enqueued_under_an_alias_and_are_stored_under_the_present_name(harbor: Harbor):
    task = harbor.task(name="new", aliases=["old", "older"])(plain)
    assert harbor.tasks["old"] is harbor.tasks["older"] is task
    assert harbor.enqueue("older", {"x": 1}).task == "new"


def test_an_alias_that_is_taken_registers_nothing(harbor: Harbor):
    harbor.task(name="taken")(plain)
    with pytest.raises(ConfigurationError, match="two tasks are called 'taken'"):
        harbor.task(name="new", aliases=["fine", "taken"])(later)
    assert set(harbor.tasks) == {"taken"}


@pytest.mark.parametrize("aliases", ["old", 5, [""], [None], ["a\0b"]])
def test_aliases_are_a_list_of_names(harbor: Harbor, aliases: Any):
    with pytest.raises(ConfigurationError):
        harbor.task(name="x", aliases=aliases)(plain)
    assert harbor.tasks == {}


def test_a_payload_with_an_old_parameter_name_still_fits(harbor: Harbor, work: Callable[[Harbor], None]):
    @harbor.task(name="greet", parameter_aliases={"who": "name"})
    def greet(name: str) -> str:
        return f"Hello, {name}"

    job = harbor.enqueue("greet", {"who": "Ada"})
    work(harbor)
    assert job.result(timeout=60) == "Hello, Ada"


def test_an_old_parameter_name_cannot_be_used_by_new_code(harbor: Harbor):
    @harbor.task(parameter_aliases={"who": "name"})
    def greet(name: str) -> str:
        return name

    with pytest.raises(PayloadError, match="it is called 'name' now"):
        greet.enqueue(who="Ada")  # type: ignore[call-arg]


@pytest.mark.parametrize("aliases", [{"who": "nobody"}, {"x": "y"}, ["x"], "x", {5: "x"}, {"who": ["x"]}])
def test_parameter_aliases_map_an_old_name_to_a_present_one(harbor: Harbor, aliases: Any):
    with pytest.raises(ConfigurationError, match="alias"):
        harbor.task(parameter_aliases=aliases)(plain)
    assert harbor.tasks == {}


def test_star_parameters_and_positional_only_ones_are_refused_when_declared(harbor: Harbor):
    def star(*values: int) -> None: ...
    def stars(**values: int) -> None: ...
    def slash(x: int, /) -> None: ...

    for function, spelling in ((star, r"\*values"), (stars, r"\*\*values"), (slash, "positional-only 'x'")):
        with pytest.raises(ConfigurationError, match=spelling):
            harbor.task(function)
    assert harbor.tasks == {}


def test_a_context_that_is_not_first_is_refused(harbor: Harbor):
    def wrong(x: int, ctx: Context) -> None: ...

    with pytest.raises(ConfigurationError, match="'ctx' is a Context, which must come first"):
        harbor.task(wrong)


def test_generators_are_refused_because_they_have_no_result(harbor: Harbor):
    def counting():
        yield 1

    async def streaming():
        yield 1

    for function in (counting, streaming):
        with pytest.raises(ConfigurationError, match="is a generator"):
            harbor.task(function)


@pytest.mark.parametrize("thing", ["email:send", 5, object()])
def test_what_cannot_be_called_cannot_be_a_task(harbor: Harbor, thing: Any):
    with pytest.raises(ConfigurationError, match=r"a task is a function.*@harbor.task\(name=…\)"):
        harbor.task(thing)


def test_what_has_no_name_of_its_own_needs_one(harbor: Harbor):
    for function in (lambda x: x, functools.partial(plain, 1)):
        with pytest.raises(ConfigurationError, match="has no name of its own"):
            harbor.task(function)
    assert harbor.tasks == {}
    assert harbor.task(name="a")(lambda x: x).enqueue(1).task == "a"


@pytest.mark.parametrize(
    "option",
    [
        {"priority": 1000},
        {"timeout": 0},
        {"queue": ""},
        {"max_attempts": 1, "max_retries": 1},
        {"nonsense": 1},
    ],
)
def test_a_wrong_option_is_told_where_it_was_written(harbor: Harbor, option: dict[str, Any]):
    with pytest.raises(ConfigurationError):
        harbor.task(**option)
    assert harbor.tasks == {}


@pytest.mark.parametrize(
    "option", ["run_at", "delay", "id", "idempotency_key", "expires_at", "expires_in", "correlation_id"]
)
def test_what_belongs_to_one_job_is_no_option_of_a_task(harbor: Harbor, option: str):
    declared: dict[str, Any] = {option: 5}
    with pytest.raises(ConfigurationError, match=rf"{option} belongs to one job.*\.using\(…\)"):
        harbor.task(**declared)


def test_options_of_the_declaration_are_resolved_when_a_job_is_enqueued(harbor: Harbor):
    policy = RetryPolicy(max_attempts=3, initial=1)
    task = harbor.task(
        queue="mail",
        priority=4,
        max_retries=8,
        timeout=30,
        retry=policy,
        delivery="at_most_once",
        tags=["a", "b"],
        meta={"team": "billing"},
    )(plain)
    job = task.enqueue(1).refresh()
    assert (job.queue, job.priority, job.max_attempts, job.timeout) == ("mail", 4, 9, 30.0)
    assert (job.delivery, job.tags, job.meta) == ("at_most_once", ("a", "b"), {"team": "billing"})
    assert job.record.options.retry is UNSET  # it follows the code


def test_what_is_given_with_using_goes_before_the_declaration(harbor: Harbor):
    task = harbor.task(queue="mail", priority=4, max_attempts=9, timeout=30, retry=presets.EMAIL)(plain)
    job = task.using(queue="vip", priority=-4, max_retries=1, timeout=5, retry=None).enqueue(1).refresh()
    assert (job.queue, job.priority, job.max_attempts, job.timeout) == ("vip", -4, 2, 5.0)
    assert job.record.options.retry is None
    assert task.enqueue(1).queue == "mail"  # using() changed nothing of the task


def test_using_may_be_said_twice_and_the_last_holds(harbor: Harbor):
    task = harbor.task(plain)
    job = task.using(priority=1, tags=["a"]).using(priority=2).enqueue(1)
    assert (job.priority, job.tags) == (2, ("a",))


def test_entries_of_meta_replace_declared_ones_one_by_one(harbor: Harbor):
    task = harbor.task(name="t", meta={"team": "billing", "kind": "a"})(plain)
    assert task.using(meta={"kind": "b", "tenant": "acme"}).enqueue(1).meta == {
        "team": "billing",
        "kind": "b",
        "tenant": "acme",
    }
    assert task.using(meta={"x": "1"}).using(meta={"x": "2"}).enqueue(1).meta["x"] == "2"
    assert task.using(meta={}).enqueue(1).meta == {"team": "billing", "kind": "a"}
    assert harbor.enqueue("t", {"x": 1}, meta={"kind": "c"}).meta == {"team": "billing", "kind": "c"}


def test_a_producer_by_name_stores_only_what_it_was_given(harbor: Harbor):
    job = harbor.enqueue("unknown:task", {"any": [1, {"x": None}]}).refresh()
    assert (job.queue, job.max_attempts, job.timeout, job.record.delivery) == ("default", None, None, None)
    assert job.payload == {"any": [1, {"x": None}]}


def test_a_producer_by_name_that_has_the_declaration_uses_it(harbor: Harbor):
    harbor.task(name="math:add", queue="math", max_attempts=4)(plain)
    job = harbor.enqueue("math:add", {"x": 1}, priority=3)
    assert (job.queue, job.max_attempts, job.priority) == ("math", 4, 3)


def test_an_object_that_can_be_called_may_be_a_task(harbor: Harbor, work: Callable[[Harbor], None]):
    class Doubler:
        async def __call__(self, x: int) -> int:
            return 2 * x

    task = harbor.task(name="double")(Doubler())
    assert task.is_async
    job = task.enqueue(21)
    work(harbor)
    assert job.result(timeout=60) == 42


def test_a_script_s_tasks_have_the_same_names_in_a_process_that_it_spawns(tmp_path: Path):
    script = tmp_path / "shop.py"
    script.write_text(
        "import multiprocessing\n"
        "from taskharbor import Harbor\n"
        "harbor = Harbor('memory://')\n"
        "@harbor.task\n"
        "def sell() -> None: ...\n"
        "def name(_):\n"
        "    return sell.name\n"
        "if __name__ == '__main__':\n"
        "    with multiprocessing.get_context('spawn').Pool(1) as pool:\n"
        "        print(sell.name, *pool.map(name, [0]))\n"
    )
    told = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=60, check=True
    )
    assert told.stdout.split() == ["shop.sell", "shop.sell"]
