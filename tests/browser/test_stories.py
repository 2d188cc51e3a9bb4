"""What people do with the dashboard, done by a browser."""

from __future__ import annotations

import os
import re
import time

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from taskharbor import chain, group
from taskharbor.server.dashboard.site import PAGES
from taskharbor.server.tokens import Role, create_token
from tests.browser.conftest import PATIENCE_MS, OpenPage, Shop

DEAD = int(os.environ.get("TASKHARBOR_FAULT_GROUPED", "60"))
HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)> '\"& 🚢 \N{RIGHT-TO-LEFT OVERRIDE}שלום"

pytestmark = [
    pytest.mark.timeout(300 + DEAD // 10),
    # Playwright keeps a loop of its own in this thread. Nothing of ours runs on it.
    pytest.mark.filterwarnings("ignore:.*inside a running event loop:RuntimeWarning"),
]
STORY_MS = PATIENCE_MS + 30 * DEAD  # thousands of jobs take longer than a few
expect.set_options(timeout=STORY_MS)


def _until(condition: object, what: str) -> None:
    give_up_at = time.monotonic() + STORY_MS / 1000
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < give_up_at, what
        time.sleep(0.05)


def _die(shop: Shop, jobs: int) -> None:
    shop.breaks()
    shop.harbor.enqueue_many(
        shop.harbor.task(name="send_email", queue="mail")(_send).s(n=n) for n in range(jobs)
    )
    _until(lambda: shop.harbor.jobs.counts()["dead"] == jobs, "all are dead")


def _send(n: int) -> None: ...


def test_a_failing_job_is_found_understood_edited_requeued_and_seen_to_succeed(
    shop: Shop, open_page: OpenPage
):
    for order in (1, -7, 3):
        shop.harbor.enqueue("charge", {"order": order}, queue="payments", max_attempts=1)
    _until(lambda: shop.harbor.jobs.counts()["dead"] == 1, "one is dead")
    page = open_page(shop.address, expected=("422",))
    page.keyboard.press("b")
    page.wait_for_url("**/jobs")
    page.keyboard.press("/")
    page.keyboard.type("state:dead payload.order:-7")
    page.keyboard.press("Enter")
    expect(page.locator("[data-row]")).to_have_count(1)
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    expect(page.locator(".why")).to_contain_text("order -7 is negative")
    expect(page.locator("pre").first).to_contain_text("in charge")
    page.get_by_role("link", name="Edit and requeue").click()
    page.get_by_label("Payload").fill('{"order": "seven"}')
    page.get_by_role("button", name="Compare and check").click()
    expect(page.get_by_role("alert")).to_contain_text("order")
    page.get_by_label("Payload").fill('{"order": 7}')
    page.get_by_role("button", name="Compare and check").click()
    expect(page.locator(".diff .old")).to_contain_text('"order": -7')
    expect(page.locator(".diff .new")).to_contain_text('"order": 7')
    page.get_by_role("button", name="Requeue with this payload").click()
    expect(page.locator(".why .state")).to_have_text("succeeded")  # by a live update, or at once
    expect(page.locator(".json").filter(has_text="charged")).to_be_visible()
    assert shop.harbor.jobs.counts()["dead"] == 0


def test_dead_jobs_of_three_causes_are_cleared_by_group_and_the_brake_stops_one(
    shop: Shop, open_page: OpenPage
):
    _die(shop, DEAD)
    page = open_page(shop.address)
    page.keyboard.press("e")
    expect(page.locator("[data-row]")).to_have_count(3)
    page.get_by_role("link", name=re.compile("TimeoutError")).click()
    page.get_by_role("button", name=re.compile("^Requeue")).click()
    expect(page.locator(".progress")).to_contain_text("stopped by the brake")
    shop.breaks(False)
    for cause in ("ConnectionError", "TimeoutError"):
        page.goto("/errors")
        page.get_by_role("link", name=re.compile(cause)).click()
        page.get_by_role("button", name=re.compile("^Requeue")).click()
        expect(page.locator(".why .state")).to_have_text("succeeded")
    page.goto("/errors")
    expect(page.locator("[data-row]")).to_have_count(1)
    page.get_by_role("link", name=re.compile("LookupError")).click()
    page.get_by_text("Discard all").click()
    page.get_by_role("button", name="Yes, do it").click()
    expect(page.locator(".why .state")).to_have_text("succeeded")
    page.goto("/errors")
    expect(page.get_by_text("No job is dead.")).to_be_visible()
    assert shop.harbor.jobs.counts()["cancelled"] == DEAD // 3


def test_a_paused_queue_tells_why_and_who(shop: Shop, open_page: OpenPage):
    job = shop.harbor.enqueue("charge", {"order": 1}, queue="payments", delay=3600)
    page = open_page(shop.address)
    page.goto("/queues/payments")
    page.get_by_role("button", name="Pause this queue").click()
    expect(page.locator(".banner")).to_contain_text("paused")
    shop.harbor.jobs.run_now(job.id)
    page.goto(f"/jobs/{job.id}")
    expect(page.locator(".why")).to_contain_text("paused, by web@127.0.0.1")
    page.goto("/queues/payments")
    page.get_by_role("button", name="Resume this queue").click()
    page.goto(f"/jobs/{job.id}")
    expect(page.locator(".why .state")).to_have_text("succeeded")


def test_a_workflow_is_watched_to_its_end(shop: Shop, open_page: OpenPage):
    step = shop.harbor.task(name="step", queue="steps")(_step)
    shop.harbor.queues.pause("steps")
    workflow = chain(step.si(), group(step.si() for _ in range(12)), step.si()).enqueue()
    page = open_page(shop.address)
    page.goto(f"/workflows/{workflow.id}")
    expect(page.locator("svg.graph g.folded")).to_have_count(1)
    expect(page.locator(".state").first).to_have_text("running")
    shop.harbor.queues.resume("steps")
    expect(page.locator("svg.graph g.box.succeeded")).to_have_count(3)
    expect(page.locator("#workflow .state").first).to_have_text("succeeded")


def _step() -> None: ...


def test_hostile_text_is_harmless_on_every_page(shop: Shop, open_page: OpenPage):
    job = shop.harbor.enqueue(
        "charge", {"order": -1, "note": HOSTILE + "x" * 300_000}, queue="payments", tags=["<b>"]
    )
    shop.harbor.enqueue("charge", {"order": 1}, queue="payments", correlation_id=HOSTILE[:100], delay=99)
    shop.harbor.schedules.add("<i>nightly</i>", "step", schedule="@every 1h", queue="steps")
    _until(lambda: shop.harbor.jobs.counts()["dead"] == 1, "one is dead")
    page = open_page(shop.address)
    for path in (
        "/jobs",
        f"/jobs/{job.id}",
        "/errors",
        "/schedules",
        "/queues",
        "/workers",
        "/system",
        "/enqueue",
    ):
        page.goto(path)
        expect(page.locator("h1")).to_be_visible()
        assert page.locator("main script, main img, main b:text('bold')").count() == 0
    page.goto(f"/jobs/{job.id}")
    expect(page.locator(".json")).to_contain_text("<script>alert(1)</script>")


def test_a_reader_sees_no_button_and_is_refused_by_the_server(closed_shop: Shop, open_page: OpenPage):
    from taskharbor.sync import run_inline

    job = closed_shop.harbor.enqueue("charge", {"order": 1}, queue="payments", delay=3600)
    token, _ = run_inline(create_token(closed_shop.harbor.driver, "ada", Role.READ))
    closed_shop.start()
    page = open_page(closed_shop.address, expected=("403",))
    page.wait_for_url("**/sign-in*")
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Sign in").click()
    page.goto(f"/jobs/{job.id}")
    expect(page.locator(".why .state")).to_have_text("scheduled")
    assert page.locator("main button:visible:not([data-copy])").count() == 0
    status = page.evaluate(
        "id => fetch(`/jobs/${id}/cancel`, {method: 'POST'}).then(answer => answer.status)", job.id
    )
    assert status == 403
    assert closed_shop.harbor.jobs.get(job.id).state == "scheduled"


def test_a_hidden_tab_asks_for_nothing_and_a_visible_one_follows(shop: Shop, open_page: OpenPage):
    seen = open_page(shop.address)
    seen.goto("/jobs")
    hidden = open_page(shop.address)
    hidden.add_init_script("Object.defineProperty(document, 'hidden', {get: () => true})")
    asked: list[str] = []
    hidden.goto("/jobs")
    hidden.on("request", lambda request: asked.append(request.url) if "/static/" not in request.url else None)
    shop.harbor.enqueue("charge", {"order": 1}, queue="payments")
    expect(seen.locator("[data-row]")).to_have_count(1)
    assert asked == []
    assert hidden.locator("[data-row]").count() == 0


def test_an_update_keeps_ticks_open_sections_and_typed_text(shop: Shop, open_page: OpenPage):
    first = shop.harbor.enqueue("charge", {"order": 1}, queue="payments", delay=3600)
    page = open_page(shop.address)
    page.goto("/jobs")
    page.locator("[data-tick]").first.check()
    page.get_by_text("Do it from a terminal").click()
    page.locator("[data-search]").fill("state:")
    shop.harbor.enqueue("charge", {"order": 2}, queue="payments", delay=3600)
    expect(page.locator("[data-row]")).to_have_count(2)
    assert page.locator(f"[data-tick][value='{first.id}']").is_checked()
    assert page.locator("[data-search]").input_value() == "state:"
    expect(page.get_by_text("taskharbor list", exact=False).first).to_be_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_page_has_a_serious_fault_of_accessibility(shop: Shop, open_page: OpenPage, scheme: str):
    _die(shop, 3)
    [dead, *_] = shop.harbor.dlq.list()
    step = shop.harbor.task(name="step", queue="steps")(_step)
    workflow = chain(step.si(), step.si()).enqueue()
    shop.harbor.schedules.add("nightly", "step", schedule="@every 1h", queue="steps")
    page = open_page(shop.address, color_scheme=scheme, viewport={"width": 360, "height": 800})
    skipped = {"/live", "/jobs/suggest", "/sign-in"}
    names = {"{fingerprint}": dead.fingerprint, "{name:path}": "nightly"}
    faults: dict[str, list[str]] = {}
    for path in [each.path for each in PAGES if each.path not in skipped]:
        address = path + ("?verb=cancel" if path == "/jobs/bulk" else "")
        for name, value in names.items():
            address = address.replace(name, str(value))
        address = address.replace("{id}", workflow.id if path.startswith("/workflows") else dead.id)
        page.goto(address)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, f"{path} is too wide"
        found = Axe().run(page).response["violations"]
        faults |= {
            f"{path}: {each['id']}": [node["html"][:200] for node in each["nodes"][:3]]
            for each in found
            if each["impact"] in ("serious", "critical")
        }
    assert not faults, "\n".join(f"{where}: {what}" for where, what in faults.items())
