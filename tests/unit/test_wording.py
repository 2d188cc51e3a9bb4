"""Words that stand beside a number agree with it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import taskharbor
from taskharbor import Harbor, PayloadError, Worker, builtin_tasks, chain
from taskharbor.codec import agreeing, counted
from taskharbor.errors import ConfigurationError


@pytest.mark.parametrize(
    ("number", "told"), [(0, "0 jobs"), (1, "1 job"), (2, "2 jobs"), (1_000, "1,000 jobs"), (-1, "-1 jobs")]
)
def test_a_noun_agrees_with_its_number(number: int, told: str):
    assert counted(number, "job") == told


def test_a_plural_of_its_own():
    assert [counted(n, "process", "processes") for n in (1, 2)] == ["1 process", "2 processes"]
    assert [agreeing(n, "is", "are") for n in (0, 1, 2)] == ["are", "is", "are"]


WRONG = re.compile(
    r"\b1 (of 1 )?[a-z]+ ?[a-z]*s\b(?! ago)|\b1 (jobs|tasks|failures|processes)|\b[02-9] job\b"
)


def test_what_is_told_of_one_thing_is_told_of_one(tmp_path):
    with Harbor(f"sqlite:///{tmp_path}/harbor.db") as harbor:
        builtin_tasks.register(harbor)

        @harbor.task(name="one")
        def one(x: int) -> int:
            return x

        said = []
        small = Harbor("memory://")
        small.task(name="one")(lambda: None)
        said.append(repr(small))
        with pytest.raises(PayloadError) as caught:
            one.enqueue(1, 2)  # type: ignore[call-arg]
        said.append(str(caught.value))
        for wrong in ({"run_at": None}, {"run_at": None, "delay": 1}):
            with pytest.raises(ConfigurationError) as unfit:
                harbor.task(**wrong)
            said.append(str(unfit.value))
        workflow = chain(one.s(1)).enqueue()
        with pytest.raises(TimeoutError) as late:
            workflow.result(timeout=0)
        said.append(str(late.value))
        said.append(repr(workflow.jobs))
        job = harbor.enqueue("fail", {"times": 1}, retry=None, max_attempts=2)
        Worker(harbor).drain_sync()
        said.append(harbor.jobs.get(job.id).error or "")
    assert [text for text in said if WRONG.search(text)] == []
    assert "with 1 task>" in said[0]
    assert "takes 1 positional argument, but 2 were given" in said[1]
    assert said[2] == "run_at belongs to one job, not to a task; give it with .using(…)"
    assert said[3] == "delay, run_at belong to one job, not to a task; give them with .using(…)"
    assert "0 of 1 job have succeeded" in said[4]
    assert said[5].startswith("<1 job of workflow")


PLURALS = (
    "attempts|bytes|connections|events|failures|handlers|jobs|leases|members|processes|queues|retries|rows|"
    "schedules|seconds|steps|tags|tasks|times|tokens|workers"
)
COUNTED = re.compile(r"\{(?P<number>[^{}]+)\} (?:[a-z]+ )?(?:" + PLURALS + r")\b")
# Always more than one where it is said, or no number at all.
FINE = {
    "len(encoded)", "size", "length", "len(scenario.jobs)", "len(PHOTOS)", "state",
}  # fmt: skip


def test_no_text_counts_things_without_asking_how_many():
    """A number that may be one is written by `counted`, which knows the singular."""
    package = Path(taskharbor.__file__).parent
    found = [
        f"{path.relative_to(package)}: {match[0]}"
        for path in package.rglob("*.py")
        if "conformance" not in path.parts
        for match in COUNTED.finditer(path.read_text())
        if not (number := match["number"].split(":")[0]).isupper() and number not in FINE
    ]
    assert found == []
