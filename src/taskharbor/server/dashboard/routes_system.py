"""`/system`: whether the store is well, what runs here, who did what, and who may come in."""

from __future__ import annotations

import platform
from typing import Any

from msgspec import Struct
from starlette.responses import Response

import taskharbor
from taskharbor.client.retention import Retention
from taskharbor.drivers.capabilities import Audit, Records
from taskharbor.drivers.typed_records import TOKENS
from taskharbor.server.dashboard.pages import Nav, Pages
from taskharbor.server.dashboard.rendering import seconds as in_words
from taskharbor.server.dashboard.view import LIVE_SECONDS, View
from taskharbor.server.routes import audit
from taskharbor.server.tokens import Role
from taskharbor.telemetry.logs import masked, masked_url
from taskharbor.views.findings import examine
from taskharbor.views.token_documents import TokenDocument

pages = Pages()

ACTIONS_SHOWN = 50
CHECKS_SECONDS = 10.0
CHECKS_WAIT = 0.1  # seconds that the page waits for them: those of a large SQLite file take longer

# What to do about a check that is not ok, by its name.
ADVICE = {
    "reachable": "Check the address of the store, and whether its server runs.",
    "schema": "Run `taskharbor migrate`.",
    "clock": "Let both machines follow the same time server.",
}


class SystemQuery(Struct, forbid_unknown_fields=True):
    """Which actions."""

    actor: str | None = None
    verb: str | None = None
    cursor: str | None = None


@pages.page("/system", query=SystemQuery, nav=Nav("System", key="y", order=90))
async def show_system(view: View) -> Response:
    """Show the checks of the store, versions, the audit, and the tokens to an admin."""
    harbor = view.harbor
    findings = await view.share("findings", CHECKS_SECONDS, lambda: examine(harbor), wait=CHECKS_WAIT)
    return view.render(
        "system.html",
        findings=None
        if findings is None
        else [finding._replace(detail=masked(finding.detail)) for finding in findings],
        advice=ADVICE,
        facts={
            "Store": masked_url(harbor.url),
            "TaskHarbor": taskharbor.__version__,
            "Application": harbor.version or "not known",
            "Python": platform.python_version(),
            "Tasks known to this server": len(harbor.tasks),
        },
        retention=_retention(harbor.retention),
        actions=await _actions(view),
        query=view.query,
        tokens=await _tokens(view),
    )


def _retention(kept: Retention) -> dict[str, str]:
    """Return how long what has ended stays in the store, in words."""

    def words(seconds: float | None) -> str:
        return "until an operator acts" if seconds is None else in_words(seconds)

    return {
        "Succeeded jobs": words(kept.succeeded),
        "Dead jobs": words(kept.dead),
        "Cancelled jobs": words(kept.cancelled),
        "Attempts of schedules": ("without end" if kept.history is None else in_words(kept.history))
        + ("" if kept.history_count is None else f", {kept.history_count:,} of each at most"),
    }


async def _actions(view: View) -> Any:
    if Audit.offered_by(view.harbor.driver) is None:
        return None
    query: dict[str, Any] = {"limit": ACTIONS_SHOWN}
    query |= {
        name: value
        for name in ("actor", "verb", "cursor")
        if (value := getattr(view.query, name)) is not None
    }
    return await view.ask(audit.list_actions, query=query)


async def _tokens(view: View) -> list[TokenDocument] | None:
    """Return the tokens without their secrets; nothing for a caller who is no admin."""
    if not view.may(Role.ADMIN) or Records.offered_by(view.harbor.driver) is None:
        return None
    driver = view.harbor.driver
    found = await view.share("tokens", LIVE_SECONDS, lambda: TOKENS.all(driver), queries=1)
    return [TokenDocument.of(token) for token in found]
