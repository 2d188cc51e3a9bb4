"""Live updates: what many open pages cost the store, and who is told of a change."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from typing import Any

import httpx
import pytest

from taskharbor import Context, Harbor, Worker, chain
from taskharbor.server.dashboard import shared
from taskharbor.server.dashboard.pages import Page
from taskharbor.server.dashboard.site import PAGES
from taskharbor.server.dashboard.view import LIVE_HEADER
from taskharbor.server.events import CHANGE, COUNTS
from tests.server.conftest import client_of

LIVE = {LIVE_HEADER: "1"}
TABS = 50
SECONDS = 60
QUERIES_EACH_SECOND = 2.0


class Time:
    """The time of this process, moved by hand."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def moved(monkeypatch: pytest.MonkeyPatch) -> Time:
    moved = Time()
    for module in (
        "taskharbor.server.allowance",
        "taskharbor.server.auth",
        "taskharbor.server.dashboard.sessions",
        "taskharbor.server.dashboard.shared",
    ):
        monkeypatch.setattr(f"{module}.time", moved)
    return moved


def counted_queries(harbor: Harbor, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count what the store is asked, by verb."""
    asked: Counter[str] = Counter()

    def counting(name: str, verb: Any) -> Any:
        async def count(*args: object, **options: object) -> object:
            asked[name] += 1
            return await verb(*args, **options)

        return count

    for name in dir(harbor.driver):
        verb = getattr(harbor.driver, name)
        if not name.startswith("_") and asyncio.iscoroutinefunction(verb):
            monkeypatch.setattr(harbor.driver, name, counting(name, verb))
    return asked


@pytest.fixture
async def filled(harbor: Harbor) -> dict[str, str]:
    """A store with something on every page; return what stands for the parts of a path."""

    @harbor.task(name="works", queue="mail")
    async def works(ctx: Context) -> None:
        ctx.enqueue(harbor.tasks["fails"].s())

    @harbor.task(name="fails", queue="mail", max_attempts=1)
    async def fails() -> None:
        raise ValueError("no")

    works_id = (await works.aenqueue()).id
    await Worker(harbor).drain()
    await works.using(delay=60).aenqueue()
    await harbor.schedules.aadd("mail", "works", schedule="@every 1h")
    workflow = await chain(works.si(), fails.si()).aenqueue()
    [dead] = await harbor.dlq.alist()
    assert dead.fingerprint is not None
    return {"id": works_id, "workflow": workflow.id, "fingerprint": dead.fingerprint, "name:path": "mail"}


def path_of(page: Page, filled: dict[str, str]) -> str:
    of_id = filled["workflow" if page.path.startswith("/workflows") else "id"]
    return re.sub(r"\{([a-z_:]+)\}", lambda found: {**filled, "id": of_id}[found[1]], page.path)


async def asked_by_tabs(
    harbor: Harbor,
    moved: Time,
    monkeypatch: pytest.MonkeyPatch,
    cookie: dict[str, str],
    app: Any,
    paths: list[str],
) -> tuple[Counter[str], Counter[str]]:
    """Let tabs ask once a second, because something changes all the time.

    Return how often the store was asked, by verb, and how often each page was brought up to date.
    """
    updated: Counter[str] = Counter()
    async with client_of(app, headers=cookie) as client:
        for path in paths:
            assert (await client.get(path)).status_code == 200
        asked = counted_queries(harbor, monkeypatch)
        for second in range(SECONDS):
            moved.now += 1
            # Most seconds have fewer tabs on one page: the others would only repeat what these ask.
            tabs = TABS if second % 20 == 0 or len(paths) > 10 else 2 * len(paths)
            # Tabs do not wait for each other: each second, another one is the first.
            order = [paths[(tab + second) % len(paths)] for tab in range(tabs)]
            for path in order:
                answer = await client.get(path, headers=LIVE)
                assert answer.status_code in (200, 204), answer.text
                updated[path] += answer.status_code == 200
    return asked, updated


@pytest.mark.parametrize("page", [page for page in PAGES if page.path != "/live"], ids=lambda page: page.path)
async def test_fifty_open_tabs_of_a_page_ask_the_store_twice_a_second_at_most(
    harbor: Harbor,
    moved: Time,
    signed_in,
    monkeypatch: pytest.MonkeyPatch,
    filled: dict[str, str],
    page: Page,
):
    app = harbor.asgi()
    cookie = await signed_in(app, "admin", expires_in=86_400)
    path = path_of(page, filled)
    async with client_of(app, headers=cookie) as client:
        if "data-live" not in (await client.get(path)).text:
            return  # an open tab of it asks nothing
    asked, updated = await asked_by_tabs(harbor, moved, monkeypatch, cookie, app, [path])
    assert asked.total() <= QUERIES_EACH_SECOND * SECONDS, asked
    assert updated[path] >= SECONDS / shared.STALE_SECONDS  # and still the page follows


async def test_fifty_open_tabs_of_all_pages_ask_the_store_twice_a_second_at_most(
    harbor: Harbor, moved: Time, signed_in, monkeypatch: pytest.MonkeyPatch, filled: dict[str, str]
):
    app = harbor.asgi()
    cookie = await signed_in(app, "admin")
    jobs = [await harbor.aenqueue("works", queue="mail") for _ in range(TABS // 2)]
    paths = [f"/jobs/{job.id}" for job in jobs]
    async with client_of(app, headers=cookie) as client:
        for page in PAGES:
            path = path_of(page, filled)
            if page.path != "/live" and "data-live" in (await client.get(path)).text:
                paths.append(path)
    asked, updated = await asked_by_tabs(harbor, moved, monkeypatch, cookie, app, paths)
    assert asked.total() <= QUERIES_EACH_SECOND * SECONDS, asked
    assert len(+updated) > 5  # one after the other has its turn


async def test_an_action_is_seen_at_once_by_every_tab(client: httpx.AsyncClient):
    assert "paused" not in (await client.get("/queues/mail", headers=LIVE)).text
    await client.post("/queues/mail/pause")
    assert "paused" in (await client.get("/queues/mail", headers=LIVE)).text


async def test_answer_is_shared_while_it_is_asked_for_and_an_error_is_not_kept(moved: Time):
    documents = shared.SharedDocuments()
    asked = 0
    gate = asyncio.Event()

    async def ask() -> int:
        nonlocal asked
        asked += 1
        await gate.wait()
        if asked == 1:
            raise ValueError("away")
        return asked

    both = [asyncio.ensure_future(documents.read("k", 1.0, ask)) for _ in range(2)]
    await asyncio.sleep(0)
    both[0].cancel()
    gate.set()
    with pytest.raises(ValueError, match="away"):
        await both[1]
    assert await documents.read("k", 1.0, ask) == 2
    assert await documents.read("k", 1.0, ask) == 2
    moved.now += 1
    assert await documents.read("k", 1.0, ask) == 3
    documents.forget()
    assert await documents.read("k", 1.0, ask) == 4


async def test_slow_answer_is_renewed_beside_its_readers_and_less_often(moved: Time):
    documents = shared.SharedDocuments()
    asked = 0
    gate = asyncio.Event()

    async def ask() -> int:
        nonlocal asked
        asked += 1
        if asked > 1:
            await gate.wait()
        moved.now += 0.5  # twenty times that: ten seconds
        return asked

    assert await documents.read("k", 5.0, ask) == 1
    moved.now += 9
    assert (await documents.read("k", 5.0, ask), asked) == (1, 1)
    moved.now += 1
    assert await documents.read("k", 5.0, ask) == 1  # and the next one is under way
    gate.set()
    renewing = documents._kept["k"].task
    assert renewing is not None
    assert await renewing == 2
    assert (await documents.read("k", 5.0, ask), asked) == (2, 2)
    moved.now += shared.STALE_SECONDS + 1
    assert await documents.read("k", 5.0, ask) == 3  # too old to be shown
    moved.now += shared.STALE_SECONDS + 1
    assert await documents.read("k", 5.0, ask, stale=3_600) == 3  # names may be older, and are renewed
    assert documents._kept["k"].task is not None


async def test_reader_that_does_not_wait_gets_nothing_and_the_question_goes_on(moved: Time):
    documents = shared.SharedDocuments()
    gate = asyncio.Event()
    asked = 0

    async def ask() -> int:
        nonlocal asked
        asked += 1
        await gate.wait()
        return asked

    assert await documents.read("k", 5.0, ask, wait=0) is None
    assert await documents.read("k", 5.0, ask, wait=0) is None
    gate.set()
    assert await documents.read("k", 5.0, ask, wait=60) == 1
    assert (await documents.read("k", 5.0, ask, wait=0), asked) == (1, 1)


async def test_page_that_comes_too_late_gets_what_is_fresh_and_asks_nothing(moved: Time):
    documents = shared.SharedDocuments()

    async def ask() -> str:
        return "answer"

    with pytest.raises(shared.NotNow):
        await documents.read("k", 1.0, ask, reader=shared.Reader.LATE_PAGE)
    await documents.read("k", 1.0, ask, reader=shared.Reader.OPEN_PAGE, queries=100)
    assert not documents.allowance.is_left()
    assert await documents.read("k", 1.0, ask, reader=shared.Reader.LATE_PAGE) == "answer"
    moved.now += 1
    with pytest.raises(shared.NotNow):
        await documents.read("k", 1.0, ask, reader=shared.Reader.LATE_PAGE)
    moved.now += 100
    assert documents.allowance.is_left()


@pytest.mark.parametrize("path", ["/", "/queues", "/queues/mail", "/jobs/suggest?q=ma"])
async def test_page_does_not_wait_until_a_million_jobs_are_counted(
    harbor: Harbor, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, path: str
):
    """The first load of a page comes without depths, and brings them soon. A pause is shown at once."""
    await harbor.aenqueue("mail", queue="mail")
    counted, gate = harbor.driver.queues, asyncio.Event()

    async def slow(**options: Any) -> Any:
        await gate.wait()
        return await counted(**options)

    monkeypatch.setattr(harbor.driver, "queues", slow)
    await client.post("/queues/mail/pause")
    early = await client.get(path)
    assert early.status_code == 200
    if path.startswith("/jobs"):
        return
    assert "data-soon" in early.text
    assert ("paused it" in early.text) is (path == "/queues/mail")
    gate.set()
    late = await client.get(path)
    while "data-soon" in late.text:
        late = await client.get(path, headers=LIVE)
    assert "paused" in late.text


async def test_open_page_is_told_of_a_change_and_the_store_is_not_counted_for_it(
    harbor: Harbor, monkeypatch: pytest.MonkeyPatch
):
    feed = harbor.asgi().state.feed
    monkeypatch.setattr("taskharbor.server.events.COUNTS_SECONDS", 0.0)
    asked = counted_queries(harbor, monkeypatch)
    listener = feed.listen("a", frozenset({CHANGE}))
    stream = feed.stream(listener, _allowed)
    try:
        assert await anext(stream) == b": connected\n\n"
        for _ in range(3):
            await asyncio.sleep(0)
        await harbor.aenqueue("t")
        assert await asyncio.wait_for(anext(stream), 60) == b"event: change\ndata: {}\n\n"
        assert asked["counts"] == 0
        counting = feed.listen("b", frozenset({COUNTS}))
        counts = feed.stream(counting, _allowed)
        assert await anext(counts) == b": connected\n\n"
        assert b'"ready":1' in await anext(counts)
        await harbor.aenqueue("t")
        message = b""
        while b'"ready":2' not in message:
            message = await asyncio.wait_for(anext(counts), 60)
        feed.leave(counting)
    finally:
        feed.leave(listener)


async def _allowed() -> None:
    pass
