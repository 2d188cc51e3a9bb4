"""Importing `taskharbor` costs a producer only what it uses."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = [
    "click",
    "rich",
    "pydantic",
    "sqlite3",
    "uvloop",
    "urllib.parse",
    "taskharbor.worker",
    "taskharbor.rules.policy",
    "taskharbor.schedule",
    "taskharbor.drivers.registry",
    "starlette",
    "uvicorn",
    "prometheus_client",
    "opentelemetry",
    "taskharbor.cli",
    "taskharbor.server",
    "taskharbor.views",
    "taskharbor.conformance",
    # A producer without a loop never needs it, and it brings sockets and TLS along.
    "asyncio",
    "socket",
    "ssl",
    "subprocess",
    "json",
    "hashlib",
    "sysconfig",
    "importlib.metadata",
    "random",
    "uuid_utils",
    "taskharbor.drivers.capabilities",
    # What hangs on a harbor is imported when the harbor is made, or first asked for it.
    "taskharbor.client.jobs",
    "taskharbor.client.dead_letters",
    "taskharbor.client.queues",
    "taskharbor.client.holds",
    "taskharbor.client.streams",
    "taskharbor.client.workflows",
    "taskharbor.client.schedules",
    "taskharbor.telemetry.logs",
    "taskharbor.workflow",
    "taskharbor.http",
    "taskharbor.streams",
    "taskharbor.integrations",
    "taskharbor.testing",
]
# Each is at most some hundred microseconds; together they are most of what `import taskharbor` takes (60 ms at most
# beside an empty program). A module of ours that is imported at the start needs a reason, and a higher number here.
OWN_MODULES_MAX = 48


def modules_after(statement: str) -> set[str]:
    run = subprocess.run(
        [sys.executable, "-c", f"{statement}\nimport sys\nprint(*sys.modules)"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return set(run.stdout.split())


@pytest.fixture(scope="module")
def imported() -> set[str]:
    return modules_after("import taskharbor")


@pytest.mark.parametrize("module", HEAVY)
def test_importing_the_package_does_not_import(imported: set[str], module: str):
    assert "taskharbor.client.harbor" in imported
    assert module not in imported


def test_importing_the_package_imports_few_of_its_modules(imported: set[str]):
    own = sorted(module for module in imported if module.partition(".")[0] == "taskharbor")
    assert len(own) <= OWN_MODULES_MAX, own


def test_a_harbor_in_memory_needs_no_sqlite():
    assert "sqlite3" not in modules_after("import taskharbor; taskharbor.Harbor('memory://').enqueue('t')")


def test_declaring_and_enqueueing_needs_no_worker_and_no_pydantic():
    used = modules_after(
        "from taskharbor import Harbor\n"
        "harbor = Harbor('memory://')\n"
        "@harbor.task\n"
        "def t(x: int) -> int: return x\n"
        "t.enqueue(1)"
    )
    assert not used & {"taskharbor.worker", "pydantic", "click", "rich"}


@pytest.mark.parametrize("module", ["taskharbor.views.job_documents", "taskharbor.server.tokens"])
def test_the_command_line_shows_documents_and_makes_tokens_without_the_web_stack(module: str):
    assert not modules_after(f"import {module}") & {
        "starlette",
        "uvicorn",
        "fastapi",
        "taskharbor.server.app",
    }


def test_the_worker_is_imported_when_it_is_asked_for():
    assert "taskharbor.worker" in modules_after("from taskharbor import Worker")
