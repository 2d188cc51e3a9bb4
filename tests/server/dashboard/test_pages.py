"""Every page: on an empty and on a filled store, below a mount, with hostile text, and within its security policy."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import shlex
from functools import partial
from html import unescape
from html.parser import HTMLParser
from typing import Any
from urllib.parse import quote, urlencode

import httpx
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.applications import Starlette

from taskharbor import Context, Harbor, Worker, chain
from taskharbor.acting import acting_as
from taskharbor.drivers.base import WorkerRecord
from taskharbor.drivers.contract.reading import StreamPartition, StreamPresence, WorkerVitals
from taskharbor.drivers.typed_records import WORKERS
from taskharbor.errors import ConfigurationError, StoreUnavailable
from taskharbor.server.app import application
from taskharbor.server.dashboard.assets import STATIC, assets
from taskharbor.server.dashboard.pages import Page
from taskharbor.server.dashboard.site import PAGES
from taskharbor.server.dashboard.view import LIVE_HEADER
from taskharbor.server.routes import OPERATIONS, ROOT_OPERATIONS
from taskharbor.server.routing import Prefixed, checked_path_prefix
from tests.server.conftest import client_of
from tests.server.dashboard.conftest import ORIGIN

HOSTILE = "<script>alert(1)</script>'\"&{{7*7}}\N{RIGHT-TO-LEFT OVERRIDE}/é?#%2F🚢"
LONG = "<b>" * 100_000
NOT_PAGES = ("/live", "/jobs/suggest")  # a stream, and JSON
OF_NAMED = "/queues/{name:path}"  # a queue that the store does not know is a queue without jobs
SHOWN = [
    page for page in PAGES if page.path not in NOT_PAGES and ("{" not in page.path or page.path == OF_NAMED)
]
OF_ONE = [page for page in PAGES if "{" in page.path and page.path != OF_NAMED]
SCRIPTS_AND_STYLES_MAX = 60_000


def path_of(path: str, name: str = "mail") -> str:
    if path == "/jobs/bulk":
        path += "?verb=cancel"
    return re.sub(r"\{[a-z_]+:path\}", quote(name, safe=""), path)


class Markup(HTMLParser):
    """What the content security policy would refuse, what is loaded, and whether tags are balanced."""

    VOID = frozenset({"meta", "link", "input", "br", "hr", "img", "path", "rect", "line", "circle", "col"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.refused: list[str] = []
        self.loaded: list[str] = []
        self.links: list[str] = []
        self.ids: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.refused += [
            f"{tag} {name}" for name in given if name == "style" or name.startswith(("on", "hx-on"))
        ]
        self.ids += [given["id"] or ""] if "id" in given else []
        if tag == "style" or (tag == "script" and not given.get("src")):
            self.refused.append(tag)
        if tag == "a" or (tag == "form" and given.get("method") == "post"):
            self.links.append(given.get("href") or given.get("action") or "")
        if tag in ("script", "img", "iframe"):
            self.loaded.append(given.get("src") or "")
        if tag == "link":
            self.loaded.append(given.get("href") or "")
        self.refused += [
            value for value in given.values() if value and value.lower().startswith("javascript:")
        ]
        if tag not in self.VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self._open.pop()

    def handle_endtag(self, tag: str) -> None:
        if tag in self.VOID:
            return
        assert self._open, f"</{tag}> closes nothing"
        assert self._open.pop() == tag


def checked(response: httpx.Response, mount: str = "") -> Markup:
    assert response.status_code == 200, response.text
    policy = response.headers["content-security-policy"]
    assert policy.startswith("default-src 'self';")
    assert "unsafe" not in policy
    markup = Markup(response.text)
    assert markup.refused == []
    assert len(markup.ids) == len(set(markup.ids)), "two elements have one id"
    assert all(address.startswith(f"{mount}/static/") for address in markup.loaded)
    assert "<script>alert" not in response.text
    return markup


@pytest.fixture
async def filled(harbor: Harbor) -> Harbor:
    """A store with jobs of every state, a paused queue, dead ones, roll-ups, and text that would do harm everywhere."""

    @harbor.task(name=HOSTILE, queue=HOSTILE, max_attempts=1)
    async def fails(ctx: Context, text: str, more: object = None) -> None:
        ctx.progress(0.5, HOSTILE, value={HOSTILE: HOSTILE})
        await ctx.step(HOSTILE, lambda: {HOSTILE: [HOSTILE]})
        raise ValueError(HOSTILE)

    @harbor.task(name="works", queue="mail")
    async def works(ctx: Context) -> str:
        ctx.enqueue(fails.using(delay=60).s(text=HOSTILE))
        return HOSTILE

    marked = fails.using(
        tags=[HOSTILE], correlation_id=HOSTILE, idempotency_key=HOSTILE, meta={"note": HOSTILE}
    )
    await marked.aenqueue(text=HOSTILE, more={HOSTILE: [HOSTILE, LONG]})
    await works.aenqueue()
    await WORKERS.put(
        harbor.driver,
        [
            WorkerRecord(
                HOSTILE,
                HOSTILE,
                1,
                1,
                0,
                (HOSTILE,),
                HOSTILE,
                tasks=(HOSTILE,),
                version=HOSTILE,
                vitals=WorkerVitals(100, 900),
            )
        ],
        60_000_000,
    )
    with acting_as(HOSTILE):
        await harbor.holds.ahold(task=HOSTILE)
        await harbor.holds.arelease(task=HOSTILE)
    await Worker(harbor, name=HOSTILE).drain()
    await fails.aenqueue(text=HOSTILE)
    await works.using(delay=60).aenqueue()
    with acting_as(HOSTILE):
        await harbor.queues.apause(HOSTILE)
    return harbor


async def path_of_one(filled: Harbor, page: Page) -> str:
    """Return the path of a thing that is there: the dead job, its cause, a schedule, a workflow."""
    [dead] = await filled.dlq.alist()
    assert dead.fingerprint is not None
    await filled.schedules.aadd(HOSTILE, HOSTILE, {"text": HOSTILE}, schedule="@every 1h")
    workflow = await chain(filled.tasks["works"].si(), filled.tasks[HOSTILE].si(text=HOSTILE)).aenqueue()
    names = {"fingerprint": dead.fingerprint, "name:path": quote(HOSTILE, safe="")}
    of_id = workflow.id if page.path.startswith("/workflows") else dead.id
    return re.sub(r"\{([a-z_:]+)\}", lambda found: names.get(found[1], of_id), page.path)


@pytest.mark.parametrize("page", OF_ONE, ids=lambda page: page.path)
async def test_page_of_one_thing_renders_hostile_text_below_a_mount(filled: Harbor, page: Page):
    path = await path_of_one(filled, page)
    outer = Starlette()
    outer.mount("/ops", filled.asgi(authorize=lambda request: "admin"))
    async with client_of(outer) as client:
        markup = checked(await client.get(f"/ops{path}"), "/ops")
        assert all(link.startswith(("/ops/", "?", "#")) for link in markup.links), markup.links
        assert Markup((await client.get(f"/ops{path}", headers={LIVE_HEADER: "1"})).text).refused == []


@pytest.mark.parametrize("page", SHOWN, ids=lambda page: page.path)
async def test_page_renders_on_an_empty_store(client: httpx.AsyncClient, page: Page):
    checked(await client.get(path_of(page.path)))


@pytest.mark.parametrize("page", SHOWN, ids=lambda page: page.path)
async def test_page_renders_hostile_text_below_a_mount(filled: Harbor, page: Page):
    """The parts that follow the store are the same text, and every link stays below the mount."""
    outer = Starlette()
    outer.mount("/ops", filled.asgi(authorize=lambda request: "admin"))
    async with client_of(outer) as client:
        path = "/ops" + path_of(page.path, HOSTILE)
        whole = await client.get(path)
        markup = checked(whole, "/ops")
        assert all(link.startswith(("/ops/", "?", "#", "/ops")) for link in markup.links), markup.links
        parts = await client.get(path, headers={LIVE_HEADER: "1"})
        assert Markup(parts.text).refused == []
        assert '<nav class="pages"' not in parts.text
        for part in re.findall(r'id="([a-z-]+)" data-live', whole.text):
            assert f'id="{part}" data-live' in parts.text


@pytest.mark.parametrize("page", [page for page in PAGES if page.path != "/live"], ids=lambda page: page.path)
async def test_no_page_shows_a_secret_of_a_payload_a_result_a_step_or_a_schedule(
    harbor: Harbor, client: httpx.AsyncClient, page: Page
):
    hidden: dict[str, Any] = {"password": "hunter-2", "deep": [{"apiKey": "hunter-2"}]}

    @harbor.task(name="call", max_attempts=1)
    async def call(ctx: Context, deep: object, password: str) -> None:
        ctx.progress(0.5, "half", value=hidden)
        await ctx.step("load", lambda: hidden)
        raise ValueError("no")

    @harbor.task(name="answer")
    async def answer() -> object:
        return hidden

    dead = await call.using(meta={"access_token": "hunter-2"}).aenqueue(**hidden)
    answered = await answer.aenqueue()
    await Worker(harbor).drain()
    workflow = await chain(answer.si(), call.si(**hidden)).aenqueue()
    await harbor.schedules.aadd("nightly", "call", hidden, schedule="@every 1h")
    fingerprint = (await dead.arefresh()).fingerprint
    assert fingerprint is not None
    for job in (dead, answered):
        path = path_of_page(page).replace("{fingerprint}", fingerprint).replace("{name:path}", "nightly")
        path = path.replace("{id}", workflow.id if path.startswith("/workflows") else job.id)
        every: tuple[dict[str, str], ...] = ({}, {LIVE_HEADER: "1"})
        for headers in every:
            response = await client.get(path, headers=headers)
            assert response.status_code in (200, 204, 409), response.text
            assert "hunter-2" not in response.text


def path_of_page(page: Page) -> str:
    return f"{page.path}?verb=cancel" if page.path == "/jobs/bulk" else page.path


async def test_docs_need_no_sign_in_and_have_a_line_for_each_operation(harbor: Harbor):
    outer = Starlette()
    outer.mount("/ops", harbor.asgi())
    async with client_of(outer) as client:
        page = await client.get("/ops/docs")
    checked(page, "/ops")
    lines = {unescape(line) for line in re.findall(r'data-copy="(curl [^"]*)"', page.text)}
    assert len(lines) == len(OPERATIONS) + len(ROOT_OPERATIONS)
    assert 'curl -H "Authorization: Bearer $TOKEN" http://localhost/ops/api/v1/jobs/ID/history' in lines
    assert "curl http://localhost/ops/healthz" in lines
    for line in lines:  # a shell reads it as it is meant
        words = shlex.split(line)
        assert words[0] == "curl"
        assert words[-1].startswith("http://localhost/ops/")
        if "-d" in words:
            json.loads(words[words.index("-d") + 1])


@pytest.mark.parametrize("proxied", ["/harbor/queues", "/queues"])
async def test_server_below_a_path_works_whether_its_proxy_removes_the_path_or_not(
    harbor: Harbor, proxied: str
):
    app = Prefixed(harbor.asgi(authorize=lambda request: "admin"), checked_path_prefix("/harbor/"))
    async with client_of(app) as client:
        markup = checked(await client.get(proxied), "/harbor")
        assert all(link.startswith(("/harbor", "#")) for link in markup.links)
        assert (await client.get("/harbor/api/v1/queues")).status_code == 200
        assert (await client.get("/harbor")).status_code == 200
    for wrong in ("harbor", "/a b", "/a//b", "/ü", "/a?b"):
        with pytest.raises(ConfigurationError, match="path prefix"):
            checked_path_prefix(wrong)


async def test_lines_to_copy_quote_names_for_the_shell(harbor: Harbor, client: httpx.AsyncClient):
    name = "x; touch pwned"
    await harbor.aenqueue("echo", {"message": "x"}, queue=name)
    added = await harbor.schedules.aadd(name, "echo", {"message": "x"}, schedule="0 3 * * *")
    for path in (f"/queues/{quote(name)}", f"/schedules/{quote(added.name)}"):
        page = unescape((await client.get(path)).raise_for_status().text)
        lines = [
            line for line in re.findall(r"taskharbor (?:queue|schedule|worker) [^<\n]*", page) if name in line
        ]
        assert lines
        assert all(f"'{name}'" in line for line in lines)


async def test_lines_to_copy_name_the_store_of_the_server(harbor: Harbor, client: httpx.AsyncClient):
    """Each of them: pasted as it is, it would otherwise act on the store of the reader's folder."""
    job = await harbor.aenqueue("echo", {"message": "x"}, queue="mail")
    await harbor.schedules.aadd("nightly", "echo", {"message": "x"}, schedule="0 3 * * *")
    paths = (
        "/",
        "/queues",
        "/queues/mail",
        "/schedules/nightly",
        f"/jobs/{job.id}",
        "/jobs",
        "/errors",
        "/workers",
    )
    for words in (" -A shop:harbor", " --url 'postgresql://ada:***@db/shop'"):
        harbor.command_words = words
        copied = []
        for path in (*paths, "/system"):
            page = (await client.get(path)).raise_for_status().text
            copied += [
                unescape(line)
                for line in re.findall(r'data-copy="([^"]*)"', page)
                if line.startswith("taskharbor ")
            ]
        assert len(copied) > 8
        without = [line for line in copied if not line.endswith(words)]
        if words.startswith(" --url"):  # which names no application
            assert all("worker -A app:harbor" in line for line in without)
            assert len(without) < len(copied) / 2
        else:
            assert without == []
            assert not any("app:harbor" in line.replace("shop:harbor", "") for line in copied)


async def test_page_without_a_session_does_not_say_where_the_store_is(harbor: Harbor):
    harbor.command_words = " --url postgresql://db/shop"
    async with client_of(application(harbor), headers=ORIGIN) as client:
        page = (await client.get("/sign-in")).raise_for_status().text
    assert "taskharbor token create NAME" in page
    assert "db/shop" not in page


async def test_people_get_a_page_where_nothing_is_and_programs_get_json(client: httpx.AsyncClient):
    page = await client.get("/nowhere", headers={"Accept": "text/html,*/*"})
    assert page.status_code == 404
    Markup(page.text)
    assert (await client.get("/nowhere")).json()["error"]["code"] == "not_found"


@pytest.mark.parametrize("page", [page for page in PAGES if page.path != "/live"], ids=lambda page: page.path)
@settings(
    max_examples=25, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)
@given(data=st.data())
def test_no_query_makes_a_page_fail(page: Page, data: st.DataObject):
    names = [] if page.query is None else [field.encode_name for field in msgspec.structs.fields(page.query)]
    name = st.sampled_from([*names, "x"]) if names else st.text(max_size=5)
    pairs = data.draw(st.lists(st.tuples(name, st.text(max_size=20) | st.integers().map(str)), max_size=3))
    query = data.draw(
        st.sampled_from([urlencode(pairs, errors="surrogatepass"), "%", "%ff", "a=b=c&&", "=&="])
    )
    named = data.draw(st.text(min_size=1, max_size=10)).replace("\ud800", "")
    is_there = data.draw(st.booleans())

    async def ask() -> int:
        harbor = Harbor("memory://")
        async with harbor, client_of(application(harbor, open_on_loopback=True)) as client:
            made = await harbor.aenqueue("t")
            ident = made.id if is_there else quote(named, safe="")
            path = re.sub(r"\{[a-z_]+\}", lambda _: ident, path_of(page.path, named).partition("?")[0])
            return (await client.get(httpx.URL(f"{path}?{query}"))).status_code

    assert asyncio.run(ask()) < 500


def test_vendored_files_are_those_that_were_published():
    vendored = {each["file"]: each for each in json.loads((STATIC / "VENDORED.json").read_text())}
    own = {"charts.js", "harbor.css", "harbor.js", "harbor.svg", "theme.js"}
    assert {name for name in assets() if ".min." in name} == vendored.keys()
    assert own <= assets().keys()
    for name, each in vendored.items():
        assert hashlib.sha256((STATIC / name).read_bytes()).hexdigest() == each["sha256"], name
        assert (STATIC / each["licenceFile"]).read_text().strip(), name
        assert each["version"]
        assert each["licence"] in ("0BSD", "MIT")


async def test_assets_are_kept_for_ever_at_addresses_that_change(client: httpx.AsyncClient):
    asset = assets()["harbor.css"]
    kept = await client.get(f"/static/{asset.hash}/harbor.css", headers={"Accept-Encoding": "gzip"})
    assert (kept.status_code, kept.content) == (200, asset.plain)
    assert kept.headers["content-encoding"] == "gzip"
    assert "immutable" in kept.headers["cache-control"]
    other = await client.get("/static/000000000000/harbor.css", headers={"Accept-Encoding": "identity"})
    assert (other.content, other.headers["cache-control"]) == (asset.plain, "no-store")
    for path in ("/static/x/VENDORED.json", "/static/x/..%2Fsite.py", "/static/x/nothing.js"):
        assert (await client.get(path)).status_code == 404


@pytest.mark.parametrize("page", SHOWN, ids=lambda page: page.path)
async def test_scripts_and_styles_stay_small(client: httpx.AsyncClient, page: Page):
    assert weight_of(await client.get(path_of(page.path))) <= SCRIPTS_AND_STYLES_MAX


@pytest.mark.parametrize("page", OF_ONE, ids=lambda page: page.path)
async def test_scripts_and_styles_of_a_page_of_one_thing_stay_small(
    client: httpx.AsyncClient, filled: Harbor, page: Page
):
    assert weight_of(await client.get(await path_of_one(filled, page))) <= SCRIPTS_AND_STYLES_MAX


async def test_scripts_and_styles_of_the_docs_and_of_errors_stay_small(client: httpx.AsyncClient):
    assert weight_of(await client.get("/docs")) <= SCRIPTS_AND_STYLES_MAX
    missing = await client.get("/nowhere", headers={"Accept": "text/html"})
    assert 0 < weight_of(missing, 404) <= SCRIPTS_AND_STYLES_MAX


def weight_of(response: httpx.Response, status: int = 200) -> int:
    """Return the bytes of scripts and styles that a page loads, compressed."""
    assert response.status_code == status
    return sum(len(assets()[address.rpartition("/")[2]].zipped) for address in Markup(response.text).loaded)


async def test_action_says_what_it_did_with_and_without_script(client: httpx.AsyncClient, harbor: Harbor):
    plain = await client.post("/queues/a%2Fpause/pause")
    assert (plain.status_code, plain.headers["location"]) == (303, "/queues/a%2Fpause")
    page = await client.get("/queues/a%2Fpause")
    assert "Paused the queue a/pause" in page.text
    assert "Paused the queue" not in (await client.get("/queues/a%2Fpause")).text  # once
    assert [queue.name for queue in await harbor.queues.alist() if queue.paused] == ["a/pause"]
    scripted = await client.post("/queues/a%2Fpause/resume", headers={"HX-Request": "true"})
    assert scripted.status_code == 204
    assert "Resumed" in json.loads(scripted.headers["hx-trigger"])["harbor:notice"]["text"]
    refused = await client.post(f"/queues/{'n' * 300}/pause", headers={"HX-Request": "true"})
    assert refused.status_code == 422
    assert json.loads(refused.headers["hx-trigger"])["harbor:notice"]["tone"] == "bad"


def _always(role: str, _: object) -> str:
    return role


async def test_role_sees_only_what_it_may_do(filled: Harbor):
    for role, sees in (("read", False), ("write", False), ("admin", True)):
        async with client_of(filled.asgi(authorize=partial(_always, role))) as client:
            assert ("/resume" in (await client.get("/queues")).text) is sees
            assert ("/resume" in (await client.get(f"/queues/{quote(HOSTILE, safe='')}")).text) is sees


async def test_store_that_is_away_is_said_on_a_page(client: httpx.AsyncClient, harbor: Harbor, monkeypatch):
    async def away(*_: object, **__: object) -> None:
        raise StoreUnavailable("postgres://secret@host")

    monkeypatch.setattr(harbor.driver, "queues", away)
    response = await client.get("/queues")
    assert response.status_code == 503
    assert "secret" not in response.text
    Markup(response.text)


@pytest.mark.parametrize(
    ("retries", "said"),
    [
        (["store"], "failed messages are jobs of the queue"),
        (["topics", "topics"], "failed messages wait in the retry topics"),
        (["ingest"], "each message becomes a job"),
        (["store", "topics"], "its workers do not agree where failed messages are retried"),
        ([None], "failed messages are jobs of the queue"),
    ],
)
async def test_streams_say_where_failed_messages_are_retried(
    harbor: Harbor, client: httpx.AsyncClient, retries: list[str | None], said: str
):
    members = [
        WorkerRecord(
            f"w{n}", "host", 1, 1, 0, stream=StreamPresence("t", "g", (StreamPartition(n, 1, 1, 1),), each)
        )
        for n, each in enumerate(retries)
    ]
    await WORKERS.put(harbor.driver, members, 60_000_000)
    assert said in (await client.get("/streams")).text
