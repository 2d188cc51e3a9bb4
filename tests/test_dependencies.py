"""Lower bounds: no version that they allow has a vulnerability that is known.

A resolver may install the oldest version that a bound allows. What a package brings along counts as well: uvicorn alone
would be content with an h11 that can be made to read one request as two.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
AT_RUN_TIME = ["", "postgres", "pydantic", "http", "server", "metrics", "otel", "django", "uvloop"]

# By package: the first version without a known vulnerability, and the one that it mends.
FIXED_IN = {
    "anyio": ("4.14.2", "CVE-2026-63374: a certificate of another host is accepted"),
    "asyncpg": ("0.21", "CVE-2020-17446: a hostile server corrupts memory"),
    "click": ("8.3.3", "CVE-2026-7246: a file's name is run as a command"),
    "django": ("5.2.17", "CVE-2026-15307 and others"),
    "fastapi": ("0.109.1", "CVE-2024-24762: a header stops the server"),
    "h11": ("0.16", "CVE-2025-43859: one request is read as two"),
    "httpx": ("0.23", "CVE-2021-41945: a URL is taken for another one"),
    "idna": ("3.15", "CVE-2026-45409: a name takes quadratic time"),
    "jinja2": ("3.1.6", "CVE-2025-27516: a template leaves its sandbox"),
    "markdown-it-py": ("2.2", "CVE-2023-26303: a text stops the parser"),
    "pydantic": ("2.4", "CVE-2024-3772: an address stops the validator"),
    "pygments": ("2.20", "CVE-2026-4539: a text stops the lexer"),
    "pytest": ("9.0.3", "CVE-2025-71176: another user's folder is used"),
    "sentry-sdk": ("2.8", "CVE-2024-40647: a subprocess is given variables that were kept from it"),
    "sqlalchemy": ("1.3", "CVE-2019-7548: SQL injection"),
    "starlette": ("1.3.1", "CVE-2026-54283, CVE-2026-48710: limits and paths can be got around"),
    "uvicorn": ("0.11.7", "CVE-2020-7695: one response is read as two"),
    "zipp": ("3.19.1", "CVE-2024-5569: an archive stops the reader"),
}


def declared(extra: str) -> list[Requirement]:
    """What the project itself asks for, with an extra or without."""
    lines = [*PROJECT["dependencies"], *(EXTRAS[extra] if extra else [])]
    found: list[Requirement] = []
    for requirement in map(Requirement, lines):
        if requirement.name == PROJECT["name"]:
            found += [each for named in requirement.extras for each in declared(named)]
        elif requirement.marker is None or requirement.marker.evaluate():
            found.append(requirement)
    return found


def brought_along(requirements: list[Requirement]) -> Iterator[Requirement]:
    """The same, and what those ask for in turn."""
    waiting, seen = list(requirements), set()
    while waiting:
        requirement = waiting.pop()
        yield requirement
        name = canonicalize_name(requirement.name)
        if name in seen:
            continue
        seen.add(name)
        further = map(Requirement, requires(name) or [])
        waiting += [each for each in further if each.marker is None or each.marker.evaluate({"extra": ""})]


def floor(requirement: Requirement) -> Version:
    bounds = [each.version for each in requirement.specifier if each.operator in (">=", "==", "~=")]
    return max(map(Version, bounds), default=Version("0"))


@pytest.mark.parametrize("extra", [*AT_RUN_TIME[:-1], "test"])
def test_no_version_that_may_be_installed_is_known_to_be_vulnerable(extra: str):
    asked = declared(extra)
    # A developer's machine installs the newest: of what only the tests bring along, their own bounds are enough.
    floors: dict[str, Version] = {}
    for requirement in asked if extra == "test" else brought_along(asked):
        name = canonicalize_name(requirement.name)
        floors[name] = max(floor(requirement), floors.get(name, Version("0")))
    allowed = {
        name: f"{floors[name]} is allowed, {fixed} is the first without {what}"
        for name, (fixed, what) in FIXED_IN.items()
        if name in floors and floors[name] < Version(fixed)
    }
    assert allowed == {}


def test_the_server_names_what_reads_its_requests():
    named = {canonicalize_name(requirement.name) for requirement in declared("server")}
    assert named >= {"h11", "starlette", "anyio", "uvicorn"}
