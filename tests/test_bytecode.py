from __future__ import annotations

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


def test_a_run_that_writes_bytecode_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    before = (sys.pycache_prefix, os.environ.get("PYTHONPYCACHEPREFIX"))
    bytecode.keep(tmp_path)
    assert (sys.pycache_prefix, os.environ.get("PYTHONPYCACHEPREFIX")) == before
