"""Interpreters with a Django that the project's own Python is too old for: Django 6 needs Python 3.12.

An environment is made once, in a folder of the user's cache, and holds what the tests need beside Django. To see where
one is, or why there is none: `python -m tools.django_environment 6.1`.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
OLDEST = (3, 12)
SECONDS_MAX = 240
EXTRAS = ("postgres", "server")
FURTHER = ("psycopg[binary]>=3.2", "pytest>=9.0.3", "httpx>=0.27")
NAMES = ("python3.13", "python3.12", "python3.14")


class Unavailable(Exception):
    """There is no such environment on this machine, and none can be made."""


class Environment(NamedTuple):
    python: Path
    path: tuple[Path, ...]  # for PYTHONPATH, before anything else


@cache
def environment(series: str, *packages: str) -> Environment:
    """Return the interpreter for a series of Django, such as "6.1", and further packages; make it if need be."""
    python = _python()
    wanted = _requirements()
    digest = hashlib.sha256("\n".join([str(python), *wanted]).encode()).hexdigest()[:12]
    folder = _cache() / f"django-{digest}"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several test processes may want it at once
        name = "-".join([f"django-{series}", *(each.replace("==", "-") for each in packages)])
        base, target = folder / "base", folder / name
        if not (base / ".ready").exists():
            _run([str(python), "-m", "venv", "--clear", "--without-pip", str(base)])
            _install(base, *wanted)
            (base / ".ready").touch()
        if not (target / ".ready").exists():
            shutil.rmtree(target, ignore_errors=True)
            _install(base, f"django=={series}.*", *packages, "--target", str(target))
            (target / ".ready").touch()
    return Environment(base / "bin" / "python", (target,))


def _python() -> Path:
    found = [Path(name) for name in map(shutil.which, NAMES) if name]
    found += sorted(Path.home().glob(".pyenv/versions/3.*/bin/python"), reverse=True)
    check = "import sys; print(sys.executable); sys.exit(sys.version_info < (3, 12))"
    for candidate in found:
        done = subprocess.run([candidate, "-c", check], capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return Path(done.stdout.strip())
    raise Unavailable("Django 6 needs Python 3.12 or newer, and this machine has none")


def _requirements() -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    return [*project["dependencies"], *(each for extra in EXTRAS for each in extras[extra]), *FURTHER]


def _install(base: Path, *arguments: str) -> None:
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "--python",
        str(base / "bin" / "python"),
    ]
    _run([*pip, "install", "--quiet", *arguments])


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS_MAX)
    except subprocess.TimeoutExpired:
        raise Unavailable(f"{' '.join(command[:4])} … took longer than {SECONDS_MAX} s") from None
    if done.returncode:
        last = (done.stderr or done.stdout).strip().splitlines()[-1:]
        raise Unavailable(f"{' '.join(command[:4])} … failed: {' '.join(last)}")


def _cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "taskharbor"


if __name__ == "__main__":
    for each in sys.argv[1:] or ["6.0", "6.1"]:
        print(each, *environment(each))  # noqa: T201
