"""Makes a release, or says in one line for each fault why it cannot: `make release`.

    python -m tools.release cut      # first: the changelog's [Unreleased] becomes the version in pyproject.toml
    python -m tools.release          # then: check, build, read and try what a user would install

Nothing is published; the last lines say how that is done. See docs/releasing.md.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from tools import changelog

ROOT = Path(__file__).parents[1]
# In the sdist beside the package: what a distributor builds and tests it with.
SDIST_NEEDS = ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "tests/conftest.py", "docs/index.md")
FIRST_JOB = """
from taskharbor import Harbor, Worker

harbor = Harbor("sqlite:///first.db")

@harbor.task
def add(a: int, b: int) -> int:
    return a + b

job = add.enqueue(1, 2)
Worker(harbor).drain_sync()
print(job.result())
"""


def version() -> str:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return str(project["version"])


def state_faults(folder: Path, tag: str) -> Iterator[str]:
    """What in the checkout keeps it from being released."""
    changed = _git(folder, "status", "--porcelain")
    if changed:
        yield f"the checkout has changes that are not committed, such as {changed.splitlines()[0].strip()}; commit them"
    if tag in _git(folder, "tag", "--list", tag).split() and _git(folder, "rev-list", "-n1", tag) != _git(
        folder, "rev-parse", "HEAD"
    ):
        yield f"the tag {tag} is at another commit: this version is released already; set another in pyproject.toml"


def _git(folder: Path, *words: str) -> str:
    return subprocess.run(
        ["git", *words], cwd=folder, check=True, capture_output=True, text=True
    ).stdout.strip()


def wheel_faults(wheel: Path, source: Path) -> Iterator[str]:
    """What a wheel lacks of the packages in this folder, or has beside them."""
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    expected = {
        str(file.relative_to(source))
        for file in source.rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    for name in sorted(expected - held):
        yield f"{wheel.name} lacks {name}"
    for name in sorted(held - expected):
        yield f"{wheel.name} has {name}, which is not in src"


def sdist_faults(sdist: Path) -> Iterator[str]:
    with tarfile.open(sdist) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    for name in SDIST_NEEDS:
        if name not in held:
            yield f"{sdist.name} lacks {name}"


def try_installed(python: Path, folder: Path, expected: str) -> None:
    """Use what is installed in an environment as its first user does, in an empty folder."""
    environment = {
        name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")
    }

    def run(*words: str | Path) -> str:
        done = subprocess.run(
            list(map(str, words)), cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise SystemExit(f"error: {' '.join(map(str, words))}: {done.stdout}{done.stderr}")
        return done.stdout

    where = Path(run(python, "-c", "import taskharbor; print(taskharbor.__file__)").strip())
    if ROOT in where.parents:
        raise SystemExit(f"error: the environment does not use what was installed, but {where}")
    shown = run(python.parent / "taskharbor", "--version").strip()
    if not shown.endswith(expected):
        raise SystemExit(f"error: taskharbor --version shows {shown}, not {expected}")
    answer = run(python, "-c", FIRST_JOB).strip()
    if answer != "3":
        raise SystemExit(f"error: the first job answered {answer}, not 3")
    run(python.parent / "taskharbor", "demo")


def _stop_at(faults: Iterator[str]) -> None:
    found = list(faults)
    sys.stderr.writelines(f"error: {fault}\n" for fault in found)
    if found:
        raise SystemExit(1)


def _all_faults(number: str) -> Iterator[str]:
    text = (ROOT / "CHANGELOG.md").read_text("utf-8")
    yield from changelog.order_faults(text)
    yield from changelog.version_faults(text, number, datetime.now(UTC).date())
    yield from state_faults(ROOT, f"v{number}")


def release() -> None:
    number = version()
    _stop_at(_all_faults(number))
    shutil.rmtree(ROOT / "dist", ignore_errors=True)
    subprocess.run([sys.executable, "-m", "build", "--outdir", "dist"], cwd=ROOT, check=True)
    (wheel,), (sdist,) = (ROOT / "dist").glob("*.whl"), (ROOT / "dist").glob("*.tar.gz")
    _stop_at(wheel_faults(wheel, ROOT / "src"))
    _stop_at(sdist_faults(sdist))
    subprocess.run([sys.executable, "-m", "twine", "check", "--strict", wheel, sdist], check=True)
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "venv", f"{folder}/env"], check=True)
        python = Path(folder, "env", "bin", "python")
        pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet", str(wheel)]
        subprocess.run(pip, cwd=folder, check=True)
        try_installed(python, Path(folder), number)
    sys.stdout.write(
        f"TaskHarbor {number} is built, read and tried. To publish it:\n"
        f"  git tag v{number} && git push origin main v{number}\n"
        f"  {sys.executable} -m twine upload {wheel.relative_to(ROOT)} {sdist.relative_to(ROOT)}\n"
    )


def cut() -> None:
    path = ROOT / "CHANGELOG.md"
    path.write_text(changelog.cut(path.read_text("utf-8"), version(), datetime.now(UTC).date()), "utf-8")
    sys.stdout.write(
        f"CHANGELOG.md has a section [{version()}]. Read it, and commit as 'Release {version()}'\n"
    )


def main(words: Sequence[str]) -> None:
    verbs = {(): release, ("cut",): cut}
    if tuple(words) not in verbs:
        raise SystemExit(f"error: {' '.join(words)}: expected nothing, or cut\n{__doc__}")
    verbs[tuple(words)]()


if __name__ == "__main__":
    main(sys.argv[1:])
