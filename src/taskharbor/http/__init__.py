"""HTTP jobs: the built-in task `http`, which calls a URL and takes a 2xx status for success.

from taskharbor.http import http_payload

harbor.enqueue("http", http_payload("https://example.com/hook", body={"order": 42}), max_attempts=5)

Producers and operators need nothing but the core for this. A worker needs the extra: `pip install 'taskharbor[http]'`.
"""

from __future__ import annotations

from taskharbor.http.payload import http_payload
from taskharbor.http.secrets import shown_payload

TASK_NAME = "http"

__all__ = ["TASK_NAME", "http_payload", "shown_payload"]
