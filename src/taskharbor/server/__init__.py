"""The REST interface: everything a harbor does, over HTTP."""

from __future__ import annotations

from taskharbor.server.app import application
from taskharbor.server.tokens import Role

__all__ = ["Role", "application"]
