"""A payload codec: what the store keeps, who can read it, and what goes on working."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from taskharbor import ConfigurationError, Context, Harbor, PayloadError, PayloadTooLarge, chain, chord
from taskharbor.records import Reason, State
from taskharbor.views.job_documents import JobDocument

SECRET = "4111-1111"


class Turned:
    """A codec that anyone can undo, so that a test can look at it."""

    name = "turned"

    def encode(self, text: str) -> str:
        return base64.b64encode(text[::-1].encode()).decode()

    def decode(self, text: str) -> str:
        return base64.b64decode(text, validate=True).decode()[::-1]


@pytest.fixture
async def plain(harbor: Harbor) -> Harbor:
    """A harbor on the same store, without the codec."""
    return harbor


@pytest.fixture
async def sealed(harbor: Harbor) -> Harbor:
    return Harbor(driver=harbor.driver, payload_codec=Turned())


def is_sealed(text: str | None) -> bool:
    assert text is not None
    return text.startswith('{"taskharbor:codec":"turned","data":"') and SECRET not in text


async def record(harbor: Harbor, job_id: str) -> Any:
    [found] = await harbor.driver.get([job_id])
    return found


async def test_store_keeps_only_what_the_codec_made(sealed, drained):
    """Payloads, results, step results and progress values, in each of the ways to store a job."""

    @sealed.task(name="work")
    async def work(ctx: Context, card: str) -> dict[str, str]:
        charged = await ctx.step("charge", lambda: card[::-1])
        ctx.progress(0.5, "half", value={"card": card})
        if ctx.job.payload == {"card": card} and card == SECRET:
            ctx.enqueue(work.s(card=SECRET + "-child"))
        return {"card": card, "charged": charged}

    jobs = [
        await work.aenqueue(card=SECRET),
        *await work.aenqueue_many([{"card": SECRET + "-a"}, {"card": SECRET + "-b"}]),
        *await sealed.aenqueue_many([work.s(card=SECRET + "-c")]),
        await sealed.aenqueue("work", {"card": SECRET + "-d"}),
    ]
    assert jobs[0].payload == {"card": SECRET}
    await drained(sealed)
    jobs = await sealed.jobs.alist()
    assert len(jobs) == 6
    for job in jobs:
        stored = await record(sealed, job.id)
        assert stored.state is State.SUCCEEDED
        assert is_sealed(stored.payload)
        assert is_sealed(stored.result)
        assert is_sealed(stored.progress.value_json)
        [step] = (await sealed.driver.steps(job.id)).values()
        assert is_sealed(step.result)
        card = job.payload["card"]
        assert await job.aresult() == {"card": card, "charged": card[::-1]}
        assert job.progress.value == {"card": card}
        assert [each.result for each in await sealed.jobs.asteps(job.id)] == [card[::-1]]
        document = JobDocument.of(job)
        assert (document.payload, document.result["card"]) == ({"card": card}, card)


async def test_reader_without_the_codec_sees_what_is_stored(plain, sealed, drained):
    @sealed.task(name="work")
    async def work(ctx: Context, card: str) -> str:
        ctx.progress(1, value=card)
        return card

    job = await work.aenqueue(card=SECRET)
    await drained(sealed)
    found = await plain.jobs.aget(job.id)
    document = JobDocument.of(found)
    assert document.progress is not None
    for shown in (found.payload, document.payload, document.result, document.progress.value):
        assert (shown["taskharbor:codec"], SECRET in str(shown)) == ("turned", False)
    with pytest.raises(
        PayloadError, match="the result was encoded by the payload codec 'turned', and this harbor"
    ):
        await found.aresult()


async def test_worker_without_the_codec_puts_the_job_back(plain, sealed, clock, drained):
    """It says what is missing; a worker that has it executes the job."""
    work = sealed.task(name="work")(_length)
    plain.task(name="work")(_length)
    job = await work.aenqueue(card=SECRET)
    await drained(plain)
    found = await plain.jobs.aget(job.id)
    assert (found.state, found.attempts) == (State.SCHEDULED, 0)
    [row] = await found.ahistory()
    assert (row.status, row.detail) == ("released", "invalid_payload")
    assert "was encoded by the payload codec 'turned', and this harbor has none; give it the one" in row.error
    clock.advance(5)
    await drained(sealed)
    assert (await job.arefresh()).state is State.SUCCEEDED


async def test_worker_without_the_codec_puts_back_what_takes_results(plain, sealed, clock, drained):
    work = sealed.task(name="work")(_length)
    flow = await chain(work.s(card=SECRET), work.using(queue="next").s()).aenqueue()
    await drained(sealed, queues=["default"])
    plain.task(name="work")(_length)
    await drained(plain, queues=["next"])
    second = await plain.jobs.aget(flow.jobs.ids[1])
    assert (second.state, second.attempts) == (State.SCHEDULED, 0)
    clock.advance(5)
    await drained(sealed, queues=["next"])
    assert await flow.aresult(0) == 1


async def test_other_codec_and_damaged_text_are_unfit_too(sealed, drained):
    class Other(Turned):
        name = "other"

    class Broken(Turned):
        def decode(self, text: str) -> str:
            raise ValueError("wrong key")

    job = await sealed.task(name="work")(_length).aenqueue(card=SECRET)
    for codec, complaint in ((Other(), "and this harbor has 'other'"), (Broken(), "ValueError: wrong key")):
        reader = Harbor(driver=sealed.driver, payload_codec=codec)
        assert "taskharbor:codec" in (await reader.jobs.aget(job.id)).payload
        with pytest.raises(PayloadError, match=complaint):
            reader.sealing.open((await record(reader, job.id)).payload)


async def test_jobs_from_before_the_codec_are_executed(plain, sealed, drained):
    before = await plain.aenqueue("work", {"card": SECRET})
    sealed.task(name="work")(_length)
    await drained(sealed)
    assert await (await sealed.jobs.aget(before.id)).aresult() == len(SECRET)


async def test_workflow_hands_results_on(sealed, drained):
    @sealed.task(name="double")
    async def double(n: int) -> int:
        return 2 * n

    @sealed.task(name="total")
    async def total(numbers: list[int], more: int = 0) -> int:
        return sum(numbers) + more

    workflow = await chord([double.s(1), double.s(2)], total.s(more=10)).aenqueue()
    await drained(sealed)
    assert await workflow.aresult(0) == 16
    for job_id in workflow.jobs.ids:
        stored = await record(sealed, job_id)
        assert is_sealed(stored.payload)
        assert is_sealed(stored.result)


async def test_failure_task_has_its_arguments_and_what_died(sealed, drained):
    seen = []

    @sealed.task(name="alert")
    async def alert(died: dict[str, Any], card: str) -> None:
        seen.append((died["task"], card))

    @sealed.task(name="fail", max_attempts=1, failure_task=alert.s(card=SECRET))
    async def fail() -> None:
        raise ValueError("no")

    job = await fail.aenqueue()
    await drained(sealed)
    assert seen == [("fail", SECRET)]
    stored = await record(sealed, job.id)
    assert SECRET not in stored.options.failure_task.payload


async def test_changed_requeued_and_repeated_jobs_stay_sealed(sealed, drained):
    work = sealed.task(name="work", max_attempts=1)(_length)
    job = await work.using(delay=60, idempotency_key="k").aenqueue(card="old")
    again = await work.using(delay=60, idempotency_key="k").aenqueue(card="other")
    assert (again.existed, again.payload) == (True, {"card": "old"})
    changed = await sealed.jobs.aupdate(job.id, payload={"card": SECRET})
    assert changed.payload == {"card": SECRET}
    assert is_sealed((await record(sealed, job.id)).payload)
    dead = await work.aenqueue(card="fail")
    await drained(sealed)
    assert (await dead.arefresh()).reason is Reason.EXHAUSTED
    assert (await sealed.dlq.arequeue(dead.id)).payload == {"card": "fail"}


async def test_schedule_is_declared_again_without_a_change(sealed, drained, clock):
    """Each encoding may be another text: only another payload is a change."""
    sealed.task(name="work")(_length)
    await sealed.schedules.aadd("s", "work", {"card": SECRET}, schedule="@every 60s")
    schedule = await sealed.schedules.aadd("s", "work", {"card": SECRET}, schedule="@every 60s")
    stored = await record(sealed, schedule.id)
    assert (schedule.payload, is_sealed(stored.payload), stored.version) == ({"card": SECRET}, True, 1)
    changed = await sealed.schedules.aupdate("s", payload={"card": "x"})
    assert (changed.payload, is_sealed((await record(sealed, schedule.id)).payload)) == ({"card": "x"}, True)


def test_limit_holds_for_what_is_stored():
    harbor = Harbor("memory://", payload_codec=Turned())
    with pytest.raises(
        PayloadTooLarge, match="bytes as the payload codec 'turned' encodes it, and the limit is"
    ):
        harbor.enqueue("t", {"x": "y" * 900_000})


async def test_result_that_cannot_be_encoded_ends_the_job(memory, drained):
    class Fussy(Turned):
        def encode(self, text: str) -> str:
            if "unfit" in text:
                raise ValueError("no such word")
            return super().encode(text)

    harbor = Harbor(driver=memory.driver, payload_codec=Fussy())

    @harbor.task(name="work")
    async def work() -> str:
        return "unfit"

    with pytest.raises(
        PayloadError, match="the payload codec 'turned' could not encode the payload: ValueError"
    ):
        await harbor.aenqueue("t", {"x": "unfit"})
    job = await work.aenqueue()
    await drained(harbor)
    found = await job.arefresh()
    assert (found.reason, "could not encode the result" in (found.error or "")) == (
        Reason.UNRECOVERABLE,
        True,
    )


async def test_codec_that_makes_no_text_of_it_ends_the_job(memory, drained):
    class OfBytes(Turned):
        def encode(self, text: str) -> str:
            return b"\xff".decode(errors="surrogateescape") if "unfit" in text else super().encode(text)

    harbor = Harbor(driver=memory.driver, payload_codec=OfBytes())

    @harbor.task(name="work")
    def work() -> str:
        return "unfit"

    with pytest.raises(
        PayloadError, match="must encode the payload as valid text, and what it returned holds"
    ):
        await harbor.aenqueue("t", {"x": "unfit"})
    job = await work.aenqueue()
    await drained(harbor)
    found = await job.arefresh()
    assert (found.reason, "must encode the result as valid text" in (found.error or "")) == (
        Reason.UNRECOVERABLE,
        True,
    )


@pytest.mark.parametrize("codec", [object(), Turned, str, 5, type("Nameless", (Turned,), {"name": None})()])
def test_what_is_no_codec_is_refused(codec: Any):
    with pytest.raises(ConfigurationError, match="payload_codec must have a name and the methods encode"):
        Harbor("memory://", payload_codec=codec)


@pytest.mark.parametrize("where", ["result", "step", "progress"])
async def test_what_looks_encoded_is_not_stored_as_it_is(sealed, drained, where):
    """Such as the body of a request: the store would keep it in plain text, and nobody could read it."""
    lookalike = {"taskharbor:codec": "turned", "data": SECRET}

    @sealed.task(name="work", max_attempts=1)
    async def work(ctx: Context) -> Any:
        if where == "step":
            await ctx.step("fetch", lambda: lookalike)
        if where == "progress":
            ctx.progress(0.5, value=lookalike)
        return lookalike

    job = await work.aenqueue()
    await drained(sealed)
    found = await job.arefresh()
    assert found.state is State.DEAD
    assert "cannot begin with the key 'taskharbor:codec'" in (found.error or "")
    stored = await record(sealed, job.id)
    assert (stored.result, stored.progress, await sealed.driver.steps(job.id)) == (None, None, {})


def test_key_of_codecs_is_refused_in_a_payload():
    with pytest.raises(PayloadError, match="a payload cannot have the key 'taskharbor:codec'"):
        Harbor("memory://").enqueue("t", {"taskharbor:codec": "x", "data": "y"})


async def _length(card: Any) -> int:
    if card == "fail":
        raise ValueError("no")
    return len(str(card))
