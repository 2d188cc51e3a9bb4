"""A Chromium for the tests of the pages: an installed one, else Debian's package, else Playwright's own download."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
INSTALL_SECONDS = 600
INSTEAD = "install Chromium so that `chromium` is on the PATH, or run `python -m playwright install chromium`"


@cache
def binary() -> Path | None:
    """Find a browser, or install one; None: Playwright has downloaded its own."""
    found = _installed()
    if found is None and shutil.which("apt-get") is not None and os.geteuid() == 0:
        _install_package()
        found = _installed()
    if found is None:
        _download()
    return found


def _installed() -> Path | None:
    found = next(filter(None, map(shutil.which, NAMES)), None)
    return None if found is None else Path(found)


def _install_package() -> None:
    """Install Debian's package; if that fails, the next way is tried."""
    for words in (["update"], ["install", "--yes", "--no-install-recommends", "chromium"]):
        subprocess.run(
            ["apt-get", "-q", *words],
            env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
            capture_output=True,
            timeout=INSTALL_SECONDS,
            check=False,
        )


def _download() -> None:
    command = [sys.executable, "-m", "playwright", "install", "chromium"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"no browser can be had: {INSTEAD}\n{done.stdout[-500:]}{done.stderr[-500:]}")
