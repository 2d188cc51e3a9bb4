"""Live updates: what many open pages cost the store, and who is told of a change."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import httpx
import pytest

from taskharbor import Harbor
from taskharbor.server.dashboard import shared
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


@pytest.mark.parametrize(
    "pages", [["/"], ["/", "/queues", "/queues/mail", "/?window=24h"]], ids=["one page", "several"]
)
async def test_fifty_open_tabs_ask_the_store_twice_a_second_at_most(
    harbor: Harbor, moved: Time, signed_in, monkeypatch: pytest.MonkeyPatch, pages: list[str]
):
    """Every tab asks once a second, because something changes all the time."""
    await harbor.aenqueue("mail", queue="mail")
    app = harbor.asgi()
    cookie = await signed_in(app, "read")
    async with client_of(app, headers=cookie) as client:
        for page in pages:
            assert (await client.get(page)).status_code == 200
        asked = counted_queries(harbor, monkeypatch)
        for second in range(SECONDS):
            moved.now += 1
            tabs = TABS if second % 20 == 0 else 2 * len(pages)  # the others would only repeat what these ask
            answers = await asyncio.gather(
                *(client.get(pages[tab % len(pages)], headers=LIVE) for tab in range(tabs))
            )
            assert {answer.status_code for answer in answers} == {200}
    assert asked.total() <= QUERIES_EACH_SECOND * SECONDS, asked
    assert asked["queues"] >= SECONDS / shared.STALE_SECONDS  # and still the pages follow


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
