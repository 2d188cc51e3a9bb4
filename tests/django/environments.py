"""A Django for each test: `django-tasks` with the suite's own, and newer ones where the machine has a Python for them.

Everything of Django runs in processes of its own: its settings are those of a whole process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest

from tests import launcher
from tests.postgres import store
from tools.django_environment import Unavailable, environment

ROOT = Path(__file__).parents[2]
SITE = Path(__file__).parent / "site"
CASES = Path(__file__).parent / "cases"
SECONDS_MAX = 240
OWN = "own"  # the Python of this process, with django-tasks
SERIES = (OWN, "6.0", "6.1")


class Project(NamedTuple):
    """A Django project: which Python runs it, and where its database is."""

    python: Path
    environ: dict[str, str]
    folder: Path

    def run(self, *arguments: str | Path, **environ: str) -> subprocess.CompletedProcess[str]:
        """Run Python with these arguments; whatever it prints comes together."""
        warm = launcher.python(launcher.DJANGO, executable=str(self.python), path=self.environ["PYTHONPATH"])
        return subprocess.run(
            [*warm, *map(str, arguments)],
            env=self.environ | environ,
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=SECONDS_MAX,
        )

    def start(self, *arguments: str | Path, **options: Any) -> subprocess.Popen[str]:
        command = [str(self.python), *map(str, arguments)]
        return subprocess.Popen(command, env=self.environ, cwd=self.folder, text=True, **options)

    def manage(self, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
        return self.run(self.folder / "manage.py", *arguments, **environ)

    def cases(self, *names: str, **environ: str) -> None:
        """Run the cases of these files under pytest, in one process of this project."""
        # Python 3.12.3 and older warn of SQLite's numbered parameters; newer ones know that they are in order.
        warnings = ("-W", "error", "-W", "ignore:Binding:DeprecationWarning")
        options = ("-q", "-p", "no:cacheprovider", *warnings, "--override-ini=python_files=case_*.py")
        folders = (f"--rootdir={CASES}", f"--confcutdir={CASES}")
        files = [CASES / f"{name}.py" for name in names]
        done = self.run("-m", "pytest", *options, *folders, "-c", os.devnull, *files, **environ)
        assert done.returncode == 0, done.stdout


def project(series: str, database: dict[str, Any], site: Path = SITE) -> Project:
    """The project on this database, with the Django of this series. If that cannot be had, the test is skipped."""
    python, path = Path(sys.executable), []
    if series != OWN:
        try:
            found = environment(series)
        except Unavailable as reason:
            pytest.skip(f"untested with Django {series}: {reason}")
        python, path = found.python, [str(each) for each in found.path]
    path += [str(site), str(ROOT / "src"), str(ROOT)]
    environ = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path),
        "SHOP_DATABASE": json.dumps(database),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # the suite's own plugins would only take time
        "NO_COLOR": "1",
        "COLUMNS": "200",
    }
    environ.pop("DJANGO_SETTINGS_MODULE", None)
    environ.pop("TASKHARBOR_URL", None)
    return Project(python, environ, site)


def sqlite(folder: Path) -> dict[str, Any]:
    return {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": str(folder / "shop.sqlite3"),
        "OPTIONS": {"transaction_mode": "IMMEDIATE"},
    }


def postgresql(dsn: str) -> dict[str, Any]:
    parts = urlsplit(dsn)
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": parts.path.removeprefix("/"),
        "USER": parts.username,
        "HOST": parts.hostname,
        "PORT": parts.port,
    }


@contextmanager
def database(kind: str, folder: Path) -> Iterator[dict[str, Any]]:
    """A fresh database of this kind, as an entry of DATABASES."""
    if kind == "sqlite":
        yield sqlite(folder)
    else:
        with store.database() as dsn:
            yield postgresql(dsn)
