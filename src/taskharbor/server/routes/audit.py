"""`/audit`: who did what and when."""

from __future__ import annotations

from taskharbor.server import requests
from taskharbor.server.operation import Call, Routes
from taskharbor.server.options import instant
from taskharbor.server.tokens import Role
from taskharbor.views.actions import ActionDocument, ActionPage

routes = Routes("audit")


@routes.on("GET", "/audit", Role.READ, query=requests.AuditQuery, errors=(422,))
async def list_actions(call: Call) -> ActionPage:
    """List the actions that match, the latest first. Only an admin sees what was done to tokens."""
    audit, query = call.harbor.audit, call.query
    after, before = instant(query.after, "after"), instant(query.before, "before")
    is_admin = call.role is not None and call.role.allows(Role.ADMIN)
    where = audit._filter(query.actor, query.verb, query.job, after, before, tokens=is_admin)
    page = await audit._page(where, query.cursor, query.limit)
    return ActionPage([ActionDocument.of(entry) for entry in page], page.next_cursor)
