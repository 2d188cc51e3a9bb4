"""Payloads for display: in lists, documents, dashboards and reprs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def shown_payload(task: str, payload: Mapping[str, Any]) -> dict[str, Any]:
    """Return the payload with the secrets of an HTTP job replaced by `***`.

    It looks only at the task's name, so it works where neither the handler nor the extra is installed.
    """
    if task != "http":
        return dict(payload)
    from taskharbor.http.secrets import shown_payload as shown_http_payload

    return shown_http_payload(payload)
