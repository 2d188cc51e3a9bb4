"""A program of the launcher is to its caller what a new Python is."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests import launcher

LIMIT = 60.0


def test_a_program_has_the_streams_the_folder_and_the_environment_of_its_caller(tmp_path: Path) -> None:
    (tmp_path / "greet.py").write_text(
        "import os, sys\n"
        "print(sys.argv, sys.stdin.read(), os.getcwd(), os.environ['GREETING'])\n"
        "print('to the other stream', file=sys.stderr)\n"
        "sys.exit(3)\n"
    )
    done = subprocess.run(
        [*launcher.python(), "greet.py", "--loud"],
        input="from the caller",
        cwd=tmp_path,
        env=os.environ | {"GREETING": "hello"},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.stdout == f"['greet.py', '--loud'] from the caller {tmp_path} hello\n"
    assert (done.stderr, done.returncode) == ("to the other stream\n", 3)


def test_a_program_imports_what_is_beside_it_and_what_the_environment_names(tmp_path: Path) -> None:
    for name in ("beside", "named"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.py").write_text(f"print({name!r})")
    (tmp_path / "beside/start.py").write_text("import beside, named, taskharbor")
    done = subprocess.run(
        [*launcher.python(), tmp_path / "beside/start.py"],
        env=os.environ | {"PYTHONPATH": str(tmp_path / "named")},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.stdout == "beside\nnamed\n", done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_program_that_a_signal_ends_ends_its_caller_by_that_signal(number: signal.Signals) -> None:
    code = f"import os; os.kill(os.getpid(), {number})"
    assert subprocess.run([*launcher.python(), "-c", code], timeout=LIMIT, check=False).returncode == -number


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_to_the_caller_ends_the_program(number: signal.Signals) -> None:
    code = "import signal; print('there', flush=True); signal.pause()"
    with subprocess.Popen(
        [*launcher.python(), "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as caller:
        assert caller.stdout is not None
        assert caller.stdout.readline() == "there\n"
        caller.send_signal(number)
        assert caller.stdout.read() == ""  # nothing has the stream open any more
        assert caller.wait(LIMIT) == -number
