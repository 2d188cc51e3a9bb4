"""The dashboard under a URL of the project: who may see it, and what it does there, under WSGI and under ASGI."""

from __future__ import annotations

import asyncio
import json
import re

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import User
from django.test import AsyncClient, Client
from shop import tasks

from taskharbor.integrations.django import get_harbor
from taskharbor.server.events import CLIENT_STREAMS_MAX

PAGE = "/staff/jobs/"
SAME_SITE = {"Origin": "http://testserver"}


class Visitor:
    """A browser that speaks to Django by one of its two interfaces."""

    def __init__(self, kind: str) -> None:
        self.client = Client() if kind == "wsgi" else AsyncClient()
        self._runner = None if kind == "wsgi" else asyncio.Runner()

    def sign_in(self, name: str, **rights: bool) -> None:
        User.objects.filter(username=name).delete()
        self.client.force_login(User.objects.create_user(name, **rights))

    def get(self, path: str, **headers: str):
        return self._asked(self.client.get(path, headers=headers))

    def post(self, path: str, data: object = None, *, kind: str = "application/json", **headers: str):
        body = json.dumps(data) if kind == "application/json" else data
        return self._asked(self.client.post(path, body or "", content_type=kind, headers=headers))

    def _asked(self, answer):
        return answer if self._runner is None else self._runner.run(answer)

    def close(self) -> None:
        if self._runner is not None:
            self._runner.run(get_harbor().aclose())
            self._runner.close()


@pytest.fixture(params=["wsgi", "asgi"])
def visitor(request):
    visitor = Visitor(request.param)
    yield visitor
    visitor.close()


def test_strangers_sign_in_first(visitor):
    answer = visitor.get(PAGE)
    assert (answer.status_code, answer.headers["Location"]) == (302, "/accounts/login/?next=/staff/jobs/")
    assert visitor.get(f"{PAGE}live", **{"Sec-Fetch-Dest": "empty"}).status_code == 403
    assert visitor.get(f"{PAGE}api/v1/jobs").status_code == 403  # a program cannot sign in on a page
    assert visitor.post(f"{PAGE}api/v1/jobs", {}, **SAME_SITE).status_code == 403


def test_users_who_are_no_staff_are_refused(visitor):
    visitor.sign_in("ana")
    assert visitor.get(PAGE).status_code == 403


def test_staff_read_and_superusers_act(visitor):
    result = tasks.add.enqueue(1)
    cancel = f"{PAGE}api/v1/jobs/{result.id}/cancel"
    visitor.sign_in("ana", is_staff=True)
    page = visitor.get(PAGE)
    assert page.status_code == 200
    assert b"/staff/jobs/static/" in page.content
    assert "shop.tasks.add" in visitor.get(f"{PAGE}jobs").content.decode()
    assert visitor.post(cancel, **SAME_SITE).status_code == 403
    visitor.sign_in("eve", is_staff=True, is_superuser=True)
    assert visitor.post(cancel, **SAME_SITE).status_code == 200
    result.refresh()
    assert result.status == "FAILED"
    with get_harbor() as harbor:
        assert harbor.audit.list()[0].actor == "eve"


def test_pages_of_other_sites_change_nothing(visitor):
    result = tasks.add.enqueue(1)
    visitor.sign_in("eve", is_staff=True, is_superuser=True)
    cancel = f"{PAGE}api/v1/jobs/{result.id}/cancel"
    for headers in (
        {},
        {"Origin": "http://elsewhere.example"},
        {"Origin": "null"},
        {**SAME_SITE, "Sec-Fetch-Site": "cross-site"},
    ):
        assert visitor.post(cancel, **headers).status_code == 403
    result.refresh()
    assert result.status == "READY"


def test_forms_of_the_dashboard_work(visitor):
    result = tasks.add.enqueue(1)
    visitor.sign_in("eve", is_staff=True, is_superuser=True)
    form = "application/x-www-form-urlencoded"
    answer = visitor.post(f"{PAGE}queues/default/pause", kind=form, **SAME_SITE)
    assert answer.status_code in (200, 303), answer.content
    with get_harbor() as harbor:
        assert [queue.paused for queue in harbor.queues.list()] == [True]
        harbor.queues.resume("default")
    assert result.status == "READY"


def test_project_decides_who_may_do_what(visitor):
    assert visitor.get("/open/").status_code == 200
    result = tasks.add.enqueue(1)
    assert visitor.post(f"/open/api/v1/jobs/{result.id}/cancel", **SAME_SITE).status_code == 200


def test_unknown_page_is_not_found_and_static_files_are_served(visitor):
    visitor.sign_in("ana", is_staff=True)
    assert visitor.get(f"{PAGE}nosuch").status_code == 404
    page = visitor.get(PAGE).content.decode()
    [style, *_] = re.findall(r'"(/staff/jobs/static/[^"]+\.css[^"]*)"', page)
    found = visitor.get(style)
    assert (found.status_code, found.headers["Content-Type"].partition(";")[0]) == (200, "text/css")


def test_stream_is_refused_under_wsgi_and_goes_on_under_asgi(visitor):
    visitor.sign_in("ana", is_staff=True)
    answer = visitor.get(f"{PAGE}live")
    if isinstance(visitor.client, Client):
        assert (answer.status_code, answer.streaming) == (503, False)
        return
    assert (answer.status_code, answer.streaming) == (200, True)
    assert answer.headers["Content-Type"].startswith("text/event-stream")

    async def first() -> bytes:
        stream = aiter(answer)
        try:
            return await asyncio.wait_for(anext(stream), 60)
        finally:
            await stream.aclose()

    assert visitor._asked(first())


def test_stream_that_was_never_read_gives_its_place_back(visitor):
    """The visitor has left before Django began to send."""
    if isinstance(visitor.client, Client):
        return  # under WSGI there are no streams
    visitor.sign_in("ana", is_staff=True)

    async def come_and_leave() -> list[int]:
        found = []
        for _ in range(2 * CLIENT_STREAMS_MAX):
            answer = await visitor.client.get(f"{PAGE}live")
            found.append(answer.status_code)
            await sync_to_async(answer.close)()
        return found

    assert visitor._asked(come_and_leave()) == [200] * (2 * CLIENT_STREAMS_MAX)
