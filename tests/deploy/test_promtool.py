"""promtool is found, fetched, or missed with a sentence that says what to do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.deploy.expressions import ROOT

TOOL = [sys.executable, "-m", "tools.promtool", "--version"]


def run(**environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        TOOL, cwd=ROOT, env=os.environ | environment, capture_output=True, text=True, timeout=60, check=False
    )


def test_promtool_on_the_path_is_used(tmp_path: Path):
    program = tmp_path / "promtool"
    program.write_text("#!/bin/sh\necho promtool of the path\n")
    program.chmod(0o755)
    assert run(PATH=f"{tmp_path}:{os.environ['PATH']}").stdout == "promtool of the path\n"


def test_a_machine_without_promtool_and_apt_says_what_to_do(tmp_path: Path):
    missed = run(PATH=str(tmp_path), XDG_CACHE_HOME=str(tmp_path))
    assert missed.returncode == 1
    assert missed.stderr == (
        "error: no promtool: it is not on the PATH, and there is no apt-get to fetch it with; "
        "install Prometheus, or put its promtool on the PATH\n"
    )


def test_a_download_that_fails_is_quoted(tmp_path: Path):
    for name in ("apt-get", "dpkg-deb"):
        (tmp_path / name).write_text("#!/bin/sh\necho 'E: no network' >&2\nexit 100\n")
        (tmp_path / name).chmod(0o755)
    missed = run(PATH=str(tmp_path), XDG_CACHE_HOME=str(tmp_path))
    assert missed.stderr == (
        "error: no promtool: it is not on the PATH, and `apt-get -q download prometheus` failed: E: no network; "
        "install Prometheus, or put its promtool on the PATH\n"
    )
