"""Tasks that every harbor knows without declaring them: `http`. One that is declared by such a name goes before it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from taskharbor.client.harbor import Harbor
    from taskharbor.client.task import Task

NAMES = frozenset({"http"})


def task_of(harbor: Harbor, name: str) -> Task[Any, Any, Any, Any] | None:
    """The task, made when it is first asked for. To enqueue a job of it, nothing else has to be installed."""
    if name not in NAMES:
        return None
    found = harbor.built_in.get(name)
    if found is None:
        from taskharbor.http.task import http_task

        found = harbor.built_in[name] = http_task(harbor)
    return found


def runnable_task_of(harbor: Harbor, name: str) -> Task[Any, Any, Any, Any] | None:
    """The task, if what it needs to run is installed here."""
    if name not in NAMES:
        return None
    from taskharbor.http.task import is_installed

    return task_of(harbor, name) if is_installed() else None


def why_unknown(name: str) -> str:
    """Why a worker knows no task of this name."""
    if name not in NAMES:
        return f"no task is called {name!r} here"
    from taskharbor.http.task import MISSING_EXTRA

    return f"{MISSING_EXTRA}, where this worker runs"
