"""What `make release` refuses, and what a user gets from the wheel: outside of the checkout, without its tools."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from datetime import date
from importlib.metadata import Distribution, distribution
from io import BytesIO
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tools import changelog, release

ROOT = Path(__file__).parents[1]
TODAY = date(2026, 11, 18)
HEAD = "# Changelog\n\nWords.\n\n"
ENTRY = "### Added\n\n- One thing\n  on two lines.\n\n### Fixed\n\n- Another.\n"
RELEASED = f"{HEAD}## [Unreleased]\n\n## [0.2.0] - 2026-11-18\n\n{ENTRY}"


# -- the changelog -----------------------------------------------------------------------------------


def test_the_changelog_is_in_order() -> None:
    assert list(changelog.order_faults((ROOT / "CHANGELOG.md").read_text())) == []


def test_a_changelog_that_fits_has_no_faults() -> None:
    assert list(changelog.order_faults(RELEASED)) == []
    assert list(changelog.version_faults(RELEASED, "0.2.0", TODAY)) == []


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (HEAD, "does not begin with a section [Unreleased]"),
        (f"{HEAD}## [0.2.0] - 2026-11-18\n", "does not begin with a section [Unreleased]"),
        (f"{HEAD}## [Unreleased]\n\n### Fixed\n\n- B.\n\n### Added\n\n- A.\n", "the groups Fixed, Added; sort them"),
        (f"{HEAD}## [Unreleased]\n\n### Fixed\n\n- A.\n\n### Fixed\n\n- B.\n", "the groups Fixed, Fixed; sort them"),
        (f"{HEAD}## [Unreleased]\n\n### New\n\n- A.\n", "the groups New; sort them as Added, Changed"),
        (f"{HEAD}## [Unreleased]\n\n### Added\n\n- A b.\n- A\n  b.\n", "has an entry 2 times; keep one: A b."),
        (f"{RELEASED}\n## [0.10.0] - 2026-11-18\n", "the newest first"),
        (f"{RELEASED}\n## [0.2.0] - 2026-11-18\n", "each version once"),
    ],
)  # fmt: skip
def test_a_changelog_out_of_order_is_refused(text: str, fault: str) -> None:
    assert any(fault in found for found in changelog.order_faults(text))


@pytest.mark.parametrize(
    ("text", "version", "fault"),
    [
        (RELEASED, "0.2", "is '0.2', and a release has three numbers"),
        (RELEASED, "0.2.0.dev1", "is '0.2.0.dev1'"),
        (RELEASED, "0.3.0", "has no section [0.3.0], the version in pyproject.toml; set that, then run"),
        (f"{HEAD}## [Unreleased]\n\n{ENTRY}", "0.2.0", "entries under [Unreleased] that no version has yet"),
        (RELEASED.replace(" - 2026-11-18", ""), "0.2.0", "has no date such as 2026-11-18, but None"),
        (RELEASED.replace("2026-11-18", "18.11.2026"), "0.2.0", "but '18.11.2026'; write it"),
        (RELEASED.replace("2026-11-18", "2026-11-19"), "0.2.0", "is dated 2026-11-19, which is after today"),
        (f"{RELEASED}\n## [0.1.0] - 2026-01-01\n", "0.1.0", "has a newer version than 0.1.0"),
    ],
)  # fmt: skip
def test_a_changelog_that_does_not_fit_the_version_is_refused(text: str, version: str, fault: str) -> None:
    assert any(fault in found for found in changelog.version_faults(text, version, TODAY))


def test_cutting_turns_what_is_unreleased_into_the_version() -> None:
    cut = changelog.cut(f"{HEAD}## [Unreleased]\n\n{ENTRY}", "0.2.0", TODAY)
    assert cut == RELEASED
    with pytest.raises(SystemExit, match="has a section \\[0.2.0\\] already"):
        changelog.cut(cut, "0.2.0", TODAY)
    with pytest.raises(SystemExit, match="nothing under"):
        changelog.cut(cut, "0.3.0", TODAY)


def test_a_checkout_with_changes_or_another_tag_is_refused(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        who = ["-c", "user.name=a", "-c", "user.email=a@example.com"]
        subprocess.run(["git", *who, *words], cwd=tmp_path, check=True, capture_output=True)

    git("init", "--quiet")
    git("commit", "--allow-empty", "-m", "One")
    assert list(release.state_faults(tmp_path, "v0.2.0")) == []
    git("tag", "v0.2.0")
    assert list(release.state_faults(tmp_path, "v0.2.0")) == []  # made again from the same commit
    git("commit", "--allow-empty", "-m", "Two")
    (tmp_path / "draft.md").touch()
    changed, tagged = release.state_faults(tmp_path, "v0.2.0")
    assert "such as ?? draft.md; commit them" in changed
    assert "v0.2.0 is at another commit" in tagged


def test_an_unknown_word_is_refused() -> None:
    with pytest.raises(SystemExit, match="publish: expected nothing, or cut"):
        release.main(["publish"])


# -- the archives ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel and the sdist, made by the build backend of pyproject.toml."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "--directory", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=120)
    return folder


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    [wheel] = dist.glob("*.whl")
    return wheel


def test_the_archives_have_what_they_need_and_nothing_else(dist: Path, wheel: Path) -> None:
    [sdist] = dist.glob("*.tar.gz")
    assert f"-{release.version()}" in wheel.name
    assert list(release.wheel_faults(wheel, ROOT / "src")) == []
    assert list(release.sdist_faults(sdist)) == []


def test_an_archive_that_lacks_a_file_is_refused(tmp_path: Path) -> None:
    source, wheel, sdist = tmp_path / "src", tmp_path / "a.whl", tmp_path / "a.tar.gz"
    (source / "pack").mkdir(parents=True)
    for name in ("a.py", "query.sql"):
        (source / "pack" / name).touch()
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in ("pack/a.py", "stray.py", "pack-1.dist-info/METADATA"):
            archive.writestr(name, "")
    assert list(release.wheel_faults(wheel, source)) == [
        "a.whl lacks pack/query.sql",
        "a.whl has stray.py, which is not in src",
    ]
    with tarfile.open(sdist, "w:gz") as made:
        made.addfile(tarfile.TarInfo("pack-1/pyproject.toml"), BytesIO())
    assert "a.tar.gz lacks LICENSE" in list(release.sdist_faults(sdist))


def needed(name: str, found: dict[str, Distribution]) -> dict[str, Distribution]:
    """A distribution and what it declares to need, without extras, and what those need."""
    if name not in found:
        found[name] = distribution(name)
        for line in found[name].requires or ():
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                needed(requirement.name.lower(), found)
    return found


def test_the_wheel_works_where_only_its_declared_dependencies_are(wheel: Path, tmp_path: Path) -> None:
    """`make release` lets pip find them; here they are copied, so that the test needs no network."""
    venv.create(tmp_path / "env", with_pip=False)
    python = tmp_path / "env/bin/python"
    install = ["-m", "pip", "--python", str(python), "install", "--quiet", "--no-index", "--no-deps"]
    subprocess.run(
        [sys.executable, *install, str(wheel)], check=True, capture_output=True, timeout=120, cwd=tmp_path
    )
    [packages] = (tmp_path / "env/lib").glob("python*/site-packages")
    for name, found in needed("taskharbor", {}).items():
        for file in [] if name == "taskharbor" else found.files or ():
            if ".." not in file.parts:  # a command in bin
                (packages / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(str(file.locate()), packages / file)
    (tmp_path / "work").mkdir()
    release.try_installed(python, tmp_path / "work", release.version())
    with pytest.raises(SystemExit, match="--version shows taskharbor, version .*, not 9.9.9"):
        release.try_installed(python, tmp_path / "work", "9.9.9")


def test_an_environment_that_uses_the_checkout_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="does not use what was installed, but .*src/taskharbor"):
        release.try_installed(Path(sys.executable), tmp_path, release.version())
