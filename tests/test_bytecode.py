from __future__ import annotations

import importlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests import bytecode


@pytest.fixture
def module(tmp_path: Path) -> Path:
    module = tmp_path / "sources" / "slow.py"
    module.parent.mkdir()
    module.write_text("WORDS = 'long'\n")
    return module


def test_a_run_that_writes_no_bytecode_keeps_it_in_its_folder(tmp_path: Path, module: Path) -> None:
    kept = tmp_path / "kept"
    starts_another = (
        "import sys; sys.path[:0] = sys.argv[1:3]\n"
        "from pathlib import Path; from tests import bytecode; bytecode.keep(Path(sys.argv[3]))\n"
        "import subprocess; subprocess.run([sys.executable, '-c', 'import slow'], cwd=sys.argv[2], check=True)\n"
    )
    root = str(Path(bytecode.__file__).parents[1])
    environment = {
        **{name: value for name, value in os.environ.items() if name != "PYTHONPYCACHEPREFIX"},
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    subprocess.run(
        [sys.executable, "-c", starts_another, root, str(module.parent), str(kept)],
        env=environment,
        check=True,
    )
    assert [file.name.partition(".")[0] for file in bytecode.mirrored(kept, module.parent).iterdir()] == [
        "slow"
    ]
    assert list(module.parent.iterdir()) == [module], "no bytecode beside the sources"


def test_bytecode_of_modules_that_tests_wrote_does_not_pile_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "kept"
    earlier = bytecode.mirrored(kept, Path(tempfile.gettempdir()) / "pytest-1" / "app.py")
    source = bytecode.mirrored(kept, Path("/project/src/tasks.py"))
    for file in (earlier, source):
        file.parent.mkdir(parents=True)
        file.touch()
    for name in ("PYTHONPYCACHEPREFIX", "PYTHONDONTWRITEBYTECODE"):
        monkeypatch.setenv(name, os.environ.get(name, ""))
    monkeypatch.setattr(sys, "pycache_prefix", sys.pycache_prefix)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    bytecode.keep(kept)
    assert not earlier.exists()
    assert source.exists()


def test_bytecode_of_a_project_among_the_temporary_files_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "kept"
    project = Path(tempfile.gettempdir()) / "checkouts" / "project"
    ours = bytecode.mirrored(kept, project / "src" / "tasks.py")
    theirs = bytecode.mirrored(kept, project.parent / "other" / "app.py")
    for file in (ours, theirs):
        file.parent.mkdir(parents=True)
        file.touch()
    bytecode.remove(
        bytecode.mirrored(kept, Path(tempfile.gettempdir())), but=bytecode.mirrored(kept, project)
    )
    assert ours.exists()
    assert not theirs.exists()


def test_test_processes_share_the_modules_between_them(monkeypatch: pytest.MonkeyPatch) -> None:
    imported: list[str] = []
    monkeypatch.setattr(importlib, "import_module", imported.append)
    monkeypatch.setenv("PYTEST_XDIST_WORKER_COUNT", "3")
    for number in range(3):
        monkeypatch.setenv("PYTEST_XDIST_WORKER", f"gw{number}")
        bytecode.import_a_share(["tests/filters", "tests/test_bytecode.py::test_of_this_module"])
    there = {file.stem for file in (bytecode.PROJECT / "tests" / "filters").glob("test_*.py")}
    assert sorted(imported) == sorted({*(f"tests.filters.{name}" for name in there), "tests.test_bytecode"})


def test_module_that_cannot_be_imported_is_left_to_the_collection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_broken.py").write_text("raise ValueError")
    monkeypatch.setattr(bytecode, "PROJECT", tmp_path)
    monkeypatch.setenv("PYTEST_XDIST_WORKER_COUNT", "1")
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw0")
    bytecode.import_a_share(["tests"])
    assert "tests.test_broken" not in sys.modules


def test_a_run_that_writes_bytecode_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    before = (sys.pycache_prefix, os.environ.get("PYTHONPYCACHEPREFIX"))
    bytecode.keep(tmp_path)
    assert (sys.pycache_prefix, os.environ.get("PYTHONPYCACHEPREFIX")) == before
