"""The examples assert what they show; here they are run, as a reader would run them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import run_broker
from tests.docs.markdown import ROOT

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
LINES_MAX = 60


def test_there_are_examples() -> None:
    assert {"first_job", "retries_and_dlq", "at_most_once"} <= {example.stem for example in EXAMPLES}


@pytest.fixture
def its_brokers(example: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """For an example that speaks of them."""
    if "TASKHARBOR_BROKERS" not in example.read_text():
        yield
        return
    with run_broker.running() as broker:
        monkeypatch.setenv("TASKHARBOR_BROKERS", broker.bootstrap)
        yield


@pytest.mark.usefixtures("its_brokers")
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.stem)
def test_example_runs(example: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", str(example)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert list(tmp_path.iterdir()) == [], "an example cleans up after itself"


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.stem)
def test_example_is_short_and_asserts_what_it_shows(example: Path) -> None:
    text = example.read_text()
    assert len(text.splitlines()) < LINES_MAX
    assert text.startswith('"""')
    assert "assert " in text
