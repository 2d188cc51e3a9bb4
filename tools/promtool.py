"""promtool, which checks and tests rules for Prometheus: from the machine, else from Debian's package of Prometheus.

Nothing is installed: the one program is taken out of the package, and kept in a folder of the user's cache. Without
apt, put promtool on the PATH: it comes with every release of Prometheus.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

PACKAGE = "prometheus"
DOWNLOAD_SECONDS = 300
RUN_SECONDS = 60
INSTEAD = "install Prometheus, or put its promtool on the PATH"


@cache
def binary() -> Path:
    """Find promtool on the PATH or in the cache, else fetch it."""
    on_path = shutil.which("promtool")
    if on_path is not None:
        return Path(on_path)
    cached = _cache() / "promtool"
    if not cached.exists():
        _fetch(cached)
    return cached


def run(*arguments: str | Path, text: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run promtool; its output and errors come together, in the order in which it wrote them."""
    return subprocess.run(
        [str(binary()), *map(str, arguments)],
        input=text,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=RUN_SECONDS,
    )


def lint(metrics: str) -> str:
    """Return what promtool finds wrong with the text of a scrape; nothing if all is well."""
    return run("check", "metrics", text=metrics).stdout


def _cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "taskharbor"


def _fetch(target: Path) -> None:
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise RuntimeError(
            f"no promtool: it is not on the PATH, and there is no apt-get to fetch it with; {INSTEAD}"
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="taskharbor-promtool-") as name:
        folder = Path(name)
        try:
            package = _downloaded(folder)
        except RuntimeError:  # the list of packages may be old, or missing
            lists = subprocess.run(
                ["apt-get", "-q", "update"],
                capture_output=True,
                text=True,
                check=False,
                timeout=DOWNLOAD_SECONDS,
            )
            if lists.returncode:
                raise
            package = _downloaded(folder)
        _run(["dpkg-deb", "--extract", package.name, "."], folder)
        # Several test processes may do this at once: each puts the same program there.
        ready = target.with_name(f"promtool.{os.getpid()}")
        shutil.copy2(folder / "usr" / "bin" / "promtool", ready)
        ready.replace(target)


def _downloaded(folder: Path) -> Path:
    _run(["apt-get", "-q", "download", PACKAGE], folder)
    return next(folder.glob(f"{PACKAGE}_*.deb"))


def _run(command: list[str], folder: Path) -> None:
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, timeout=DOWNLOAD_SECONDS
    )
    if done.returncode:
        raise RuntimeError(
            f"no promtool: it is not on the PATH, and `{' '.join(command)}` failed: {done.stderr.strip()}; {INSTEAD}"
        )


if __name__ == "__main__":
    try:
        os.execv(binary(), ["promtool", *sys.argv[1:]])
    except RuntimeError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(1)
