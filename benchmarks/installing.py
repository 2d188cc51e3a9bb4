"""`python -m benchmarks.installing`: what the extra `bench` names and the queues in `foreign/`, as much as can be had.

`pip install '.[bench]'` installs all or nothing. A peer that cannot be installed, on this platform or at this time, is
no reason not to measure the others: the output says what failed, and the report lists its contestants as not installed.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

from benchmarks import foreign

ROOT = Path(__file__).parent.parent
EXTRA = "bench"


def main() -> int:
    for problem in foreign.install():
        print(f"left out: {problem}", file=sys.stderr)
    if install("--editable", f"{ROOT}[{EXTRA}]"):
        return 0
    print(f"not all of {EXTRA} could be installed: one after the other", file=sys.stderr)
    if not install("--editable", str(ROOT)):
        return 1
    for requirement in requirements():
        if not install(requirement):
            print(f"left out, since it could not be installed: {requirement}", file=sys.stderr)
    return 0


def requirements() -> list[str]:
    """Those of the extra, with our own extras resolved to what they name."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    found: list[str] = []
    for line in extras[EXTRA]:
        if line.startswith("taskharbor["):
            names = line.partition("[")[2].rstrip("]").split(",")
            found += [requirement for name in names for requirement in extras[name.strip()]]
        else:
            found.append(line)
    return found


def install(*arguments: str) -> bool:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", *arguments]
    return subprocess.run(command, check=False).returncode == 0


if __name__ == "__main__":
    sys.exit(main())
