"""The pages of jobs: found by search, understood, edited, requeued, and acted on in bulk."""

from __future__ import annotations

import json
import re
from html import unescape

import httpx
import pytest

from taskharbor import Context, Harbor, RetryPolicy, Worker, chain
from taskharbor.server.dashboard.json_tree import compared
from tests.server.conftest import client_of
from tests.server.dashboard.conftest import ORIGIN
from tests.worker.apart import done

ONCE = RetryPolicy(max_attempts=1)


@pytest.fixture
def shop(harbor: Harbor) -> Harbor:
    @harbor.task(name="charge", retry=ONCE)
    async def charge(order: int, note: str = "") -> dict[str, int]:
        if order < 0:
            raise ValueError(f"order {order} is negative")
        return {"big": 123456789012345678901234567890}

    @harbor.task(name="long", retry=ONCE)
    async def long(ctx: Context) -> None:
        await ctx.step("load", lambda: 7)
        raise RuntimeError("after the step")

    return harbor


def text_of(response: httpx.Response, status: int = 200) -> str:
    assert response.status_code == status, response.text
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", response.text)).split())


async def test_a_search_finds_jobs_by_what_is_typed_and_shows_it_again(shop, client):
    for order in (1, -1, -2):
        await shop.tasks["charge"].using(tags=["x"]).aenqueue(order=order)
    await done(shop)
    page = await client.get("/jobs", params={"q": "state:dead payload.order:-1"})
    assert "order -1 is negative" in text_of(page)
    assert "order -2" not in page.text
    assert 'value="state:dead payload.order:-1"' in page.text
    assert "order -2" in text_of(await client.get("/jobs", params={"state": "dead", "tag": "x"}))
    assert (await client.get("/jobs/suggest", params={"q": "task:char"})).json() == ["task:charge"]


@pytest.mark.parametrize(
    ("typed", "problem"),
    [
        ("colour:red", "colour: is not searched for"),
        ("state:ded", "'ded'"),
        ("state:ded", "it is one of waiting, scheduled, ready, running, succeeded, dead, cancelled"),
        ("id:ffffffff task:charge", "ffffffff"),
    ],
)
async def test_a_search_that_is_not_understood_says_so(shop, client, typed, problem):
    assert problem in text_of(await client.get("/jobs", params={"q": typed}), 422)


async def test_the_beginning_of_an_id_opens_the_job(shop, client):
    job = await shop.tasks["charge"].aenqueue(order=1)
    found = await client.get("/jobs", params={"q": job.id[:20]})
    assert (found.status_code, found.headers["location"]) == (303, f"/jobs/{job.id}")


async def test_pages_of_a_list_go_on_where_the_last_ended(shop, client):
    await shop.aenqueue_many(shop.tasks["charge"].s(order=n) for n in range(51))
    first = await client.get("/jobs")
    assert first.text.count("data-row") == 50
    [following] = re.findall(r'rel="next" href="([^"]+)"', first.text)
    assert (await client.get(unescape(following))).text.count("data-row") == 1


async def test_a_job_shows_why_its_attempts_its_steps_and_exact_numbers(shop, client):
    good = await shop.tasks["charge"].aenqueue(order=1)
    bad = await shop.tasks["long"].aenqueue()
    await done(shop)
    assert "123456789012345678901234567890" in text_of(await client.get(f"/jobs/{good.id}"))
    page = await client.get(f"/jobs/{bad.id}")
    shown = text_of(page)
    assert str(await shop.jobs.awhy(bad.id)) in shown
    for words in ("RuntimeError: after the step", "Traceback", "load", "attempt 1", "taskharbor job retry"):
        assert words in shown
    assert 'class="period failed"' in page.text


async def test_a_dead_job_is_edited_compared_and_requeued_once(shop, client):
    job = await shop.tasks["charge"].using(tags=["x"], correlation_id="order-7").aenqueue(order=-1)
    await done(shop)
    address = f"/jobs/{job.id}/edit"
    assert '"order": -1' in text_of(await client.get(address))
    assert "not valid JSON" in text_of(await client.post(address, data={"payload": "{"}), 422)
    misfit = await client.post(address, data={"payload": '{"order": "many"}'})
    assert "order" in text_of(misfit, 422)
    compared = text_of(await client.post(address, data={"payload": '{"order": 5}'}))
    assert '- "order": -1' in compared
    assert '+ "order": 5' in compared
    assert "fits the signature of charge" in compared
    sure = {"payload": '{"order": 5}', "sure": "true"}
    made = await client.post(address, data=sure)
    assert made.status_code == 303
    new = await shop.jobs.aget(made.headers["location"].rpartition("/")[2])
    assert (new.payload, new.tags, new.correlation_id) == ({"order": 5}, ("x",), "order-7")
    assert (await job.arefresh()).state == "cancelled"
    assert (await client.post(address, data=sure)).headers["location"] == made.headers["location"]
    await done(shop)
    assert (await new.arefresh()).state == "succeeded"


async def test_secrets_are_masked_and_an_edit_keeps_them(harbor, client):
    @harbor.task(name="call", retry=ONCE)
    async def call(url: str, auth: dict[str, object], keys: list[dict[str, str]]) -> None:
        raise RuntimeError("refused")

    secret = {"auth": {"user": "ann", "password": "hunter-2", "max_tokens": 5}, "keys": [{"apiKey": "k-3"}]}
    job = await harbor.tasks["call"].using(meta={"access_token": "t-4"}).aenqueue(url="a", **secret)
    await done(harbor)
    address = f"/jobs/{job.id}/edit"
    for page in (await client.get(f"/jobs/{job.id}"), await client.get(address)):
        assert not re.search("hunter-2|k-3|t-4", page.text)
        assert "masked" in text_of(page)
        assert '"max_tokens"' in text_of(page)
    shown = re.search(r"<textarea[^>]*>(.*?)</textarea>", (await client.get(address)).text, re.DOTALL)
    assert shown is not None
    edited = {**json.loads(unescape(shown[1])), "url": "b"}
    compared = await client.post(address, data={"payload": json.dumps(edited)})
    assert '+ "url": "b"' in text_of(compared)
    assert not re.search("hunter-2|k-3", compared.text)
    made = await client.post(address, data={"payload": json.dumps(edited), "sure": "true"})
    new = await harbor.jobs.aget(made.headers["location"].rpartition("/")[2])
    assert new.payload == {"url": "b", **secret}
    assert new.meta["access_token"] == "t-4"
    edited["keys"].append(edited["keys"][0])
    refused = text_of(await client.post(address, data={"payload": json.dumps(edited)}), 422)
    assert "payload.keys[1].apiKey is '*** masked ***', and the job has no such secret" in refused
    other = {**edited, "auth": {**edited["auth"], "password": "new"}, "url": "a", "keys": edited["keys"][:1]}
    changed = await client.post(address, data={"payload": json.dumps(other)})
    assert "Only masked values change." in text_of(changed)


async def test_actions_on_one_job(shop, client):
    late = await shop.tasks["charge"].using(delay=60).aenqueue(order=1)
    assert (await client.post(f"/jobs/{late.id}/run")).status_code == 303
    assert (await late.arefresh()).state == "ready"
    await client.post(f"/jobs/{late.id}/cancel")
    assert (await late.arefresh()).state == "cancelled"
    await client.post(f"/jobs/{late.id}/retry")
    assert (await late.arefresh()).state == "ready"
    assert "cannot be discarded" in text_of(await client.post(f"/jobs/{late.id}/discard"), 409)
    await client.post(f"/jobs/{late.id}/delete")
    assert (await client.get(f"/jobs/{late.id}")).status_code == 404


async def test_ticked_jobs_are_acted_on_and_refusals_are_counted(shop, client):
    waiting = await shop.tasks["charge"].using(delay=60).aenqueue(order=1)
    ended = await shop.tasks["charge"].aenqueue(order=1)
    await done(shop)
    answer = await client.post("/jobs/selected", data={"verb": "cancel", "id": [waiting.id, ended.id]})
    assert answer.status_code == 303
    assert (await waiting.arefresh()).state == "cancelled"
    shown = text_of(await client.get("/jobs"))
    assert "Cancel: 1 job. 1 job refused: " in shown
    assert "tick the jobs first" in text_of(await client.post("/jobs/selected", data={"verb": "cancel"}), 422)


async def test_all_that_match_are_counted_first_and_then_acted_on_by_a_job(shop, client, clock):
    await shop.aenqueue_many(shop.tasks["charge"].s(order=-1) for _ in range(3))
    await done(shop)
    clock.advance(1)
    asked = text_of(await client.get("/jobs/bulk", params={"verb": "discard", "q": "state:dead"}))
    assert "3 jobs match now" in asked
    started = await client.post("/jobs/bulk", data={"verb": "discard", "q": "state:dead"})
    assert started.status_code == 303
    await Worker(shop).drain()
    assert (await shop.jobs.acounts())["dead"] == 0
    bulk = await shop.jobs.aget(started.headers["location"].rpartition("/")[2])
    assert (bulk.task, await bulk.aresult()) == ("taskharbor.bulk", {"changed": 3})


async def test_an_empty_search_acts_on_everything_and_rest_has_to_say_so(shop, client, clock):
    await shop.tasks["charge"].using(delay=60).aenqueue(order=1)
    clock.advance(1)
    refused = await client.post("/api/v1/jobs/bulk", json={"verb": "cancel"})
    assert refused.status_code == 422
    assert 'give a filter, or "everything": true' in refused.json()["error"]["message"]
    assert "1 jobs match now" in text_of(await client.get("/jobs/bulk", params={"verb": "cancel", "q": ""}))
    assert (await client.post("/jobs/bulk", data={"verb": "cancel", "q": ""})).status_code == 303
    await Worker(shop).drain()
    assert (await shop.jobs.acounts())["cancelled"] == 1
    asked = {"verb": "delete", "everything": True}
    assert (await client.post("/api/v1/jobs/bulk", json=asked)).status_code == 201


async def test_a_bulk_action_with_a_search_that_is_not_understood_is_refused(shop, client):
    await shop.tasks["charge"].using(delay=60).aenqueue(order=1)
    for typed, problem in (("colour:red", "not searched for"), ("id:ffffffff", "from the list")):
        refused = await client.post("/jobs/bulk", data={"verb": "cancel", "q": typed})
        assert problem in text_of(refused, 422)
    assert (await shop.jobs.acounts())["scheduled"] == 1
    only_dead = await client.get("/jobs/bulk", params={"verb": "requeue", "q": "state:ready"})
    assert "only dead jobs can be requeued" in text_of(only_dead, 422)


async def test_a_writer_cannot_start_or_repeat_what_only_an_admin_may(shop, harbor, clock):
    """The tasks of bulk actions and replays are not enqueued by hand: their payloads name the actor."""
    await shop.tasks["charge"].using(delay=60).aenqueue(order=1)
    clock.advance(1)
    bulk = await shop.jobs.astart_bulk("cancel", task="charge")
    await shop.jobs.acancel(bulk.id)
    payload = {"verb": "delete", "where": {}, "actor": "the-admin"}
    async with client_of(harbor.asgi(authorize=lambda request: ("write", "bob")), headers=ORIGIN) as client:
        asked = [
            client.post("/api/v1/jobs", json={"task": "taskharbor.bulk", "payload": payload}),
            client.post("/api/v1/jobs", json={"task": "taskharbor.replay", "payload": {}}),
            client.post(
                "/api/v1/schedules", json={"name": "s", "task": "taskharbor.bulk", "schedule": "@every 1h"}
            ),
            client.post(f"/api/v1/jobs/{bulk.id}/retry"),
            client.post(f"/jobs/{bulk.id}/retry"),
            client.patch(f"/api/v1/jobs/{bulk.id}", json={"payload": payload}),
        ]
        assert [(await each).status_code for each in asked] == [403] * len(asked)
        form = {"task": "taskharbor.bulk", "payload": json.dumps(payload), "sure": "true"}
        assert "started with POST /jobs/bulk" in text_of(await client.post("/enqueue", data=form), 422)
    assert (await shop.jobs.acounts())["scheduled"] == 1


async def test_a_member_of_a_workflow_is_not_edited(shop, client):
    workflow = await chain(shop.tasks["charge"].si(order=-1), shop.tasks["charge"].si(order=1)).aenqueue()
    await done(shop)
    [dead] = await shop.dlq.alist()
    assert dead.workflow == workflow.id
    assert "Edit and requeue" not in text_of(await client.get(f"/jobs/{dead.id}"))
    assert "member of a workflow" in text_of(await client.get(f"/jobs/{dead.id}/edit"), 409)


async def test_a_cancelled_job_is_edited_twice_into_two_jobs(shop, client):
    job = await shop.tasks["charge"].using(delay=60).aenqueue(order=1)
    await shop.jobs.acancel(job.id)
    made = {
        (
            await client.post(f"/jobs/{job.id}/edit", data={"payload": f'{{"order": {n}}}', "sure": "true"})
        ).headers["location"]
        for n in (1, 2)
    }
    assert len(made) == 2


def test_a_comparison_of_many_changed_lines_ends_soon():
    """Each pair of lines that are alike but not equal was compared letter by letter, for minutes."""
    old = {f"key_{n:04}_aaaaaaaaaaaaaaaa": "b" * 20 for n in range(400)}
    new = {f"key_{n:04}_aaaaaaaaaaaaaaab": "b" * 19 + "c" for n in range(400)}
    lines = compared(old, new)
    assert (sum(line.kind == "old" for line in lines), sum(line.kind == "new" for line in lines)) == (
        400,
        400,
    )


async def test_children_stand_on_the_timeline_of_their_parent(shop: Harbor, client: httpx.AsyncClient):
    @shop.task(name="order")
    async def order(ctx: Context) -> None:
        ctx.enqueue(shop.tasks["charge"].s(order=1))
        ctx.enqueue(shop.tasks["charge"].s(order=-1))

    for correlation in (None, "order-7"):
        parent = await order.using(correlation_id=correlation).aenqueue()
        stranger = await shop.tasks["charge"].using(correlation_id=correlation or parent.id).aenqueue(order=2)
        await done(shop)
        page = await client.get(f"/jobs/{parent.id}")
        drawn = re.findall(r"<title>(child [^<]*)</title>", page.text)
        assert sorted(drawn) == ["child charge: dead", "child charge: succeeded"]
        assert stranger.id not in page.text
        children = await shop.jobs.alist(correlation_id=correlation or parent.id, task="charge")
        of_parent = [child for child in children if child.parent == parent.id]
        assert len(of_parent) == 2
        for child in of_parent:
            assert f'href="/jobs/{child.id}"' in page.text
            assert f'href="/jobs/{parent.id}"' in (await client.get(f"/jobs/{child.id}")).text
