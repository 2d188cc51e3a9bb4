"""Handlers in processes of their own: what can be declared so, and in which programs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from taskharbor import Harbor, Worker
from taskharbor.errors import ConfigurationError
from taskharbor.records import State
from tests.worker import isolated
from tests.worker.apart import children_of, is_alive

# -- declaring -----------------------------------------------------------------------------------


def test_what_cannot_be_imported_is_refused_where_it_is_declared(memory):
    def local() -> None: ...

    for function in (local, lambda: None):
        with pytest.raises(ConfigurationError, match="made while a function runs.*top level of a module"):
            memory.task(name="t", isolation="process")(function)
    with pytest.raises(ConfigurationError, match="no name of its own"):
        memory.task(name="t", isolation="process")(Caller())


class Caller:
    def __call__(self) -> None: ...


def test_isolation_is_checked(memory):
    with pytest.raises(
        ConfigurationError, match='isolation must be "process", "thread" or left out, not \'fork\''
    ):
        memory.task(isolation="fork")(isolated.add)
    with pytest.raises(ConfigurationError, match="is for `def` functions"):
        memory.task(isolation="thread")(isolated.add_async)
    task = memory.task(isolation="thread")(isolated.add)
    with pytest.raises(ConfigurationError, match="isolation belongs to a task, not to one job"):
        task.using(isolation="process")
    with pytest.raises(ConfigurationError, match="isolation belongs to a task"):
        memory.enqueue("t", {}, isolation="process")
    with pytest.raises(ConfigurationError, match="handler_max_jobs must be a whole number from 1"):
        Worker(memory, handler_max_jobs=0)


def test_a_notebooks_function_is_refused(tmp_path):
    program = (
        "from taskharbor import Harbor\n"
        "harbor = Harbor('memory://')\n"
        "@harbor.task(isolation='process')\n"
        "def f() -> None: ...\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert "was typed in (a notebook, a prompt, `python -c`)" in run.stderr


# -- programs ------------------------------------------------------------------------------------

SCRIPT = """
import os
from taskharbor import Context, Harbor, RetryPolicy, Worker

harbor = Harbor({url!r})
setup = os.environ.setdefault("SETUP", str(os.getpid()))

class Own(Exception): ...

@harbor.task
def child(n: int) -> int:
    return n

@harbor.task(isolation="process", retry=RetryPolicy(never_retry_on=[Own]))
def parent(ctx: Context, n: int) -> list[int]:
    ctx.enqueue(child.s(n))
    if n < 0:
        raise Own
    return [os.getpid(), os.getppid()]

def main():
    good, bad = parent.enqueue(1), parent.enqueue(-1)
    Worker(harbor, concurrency=1).drain_sync()
    pid, ppid = good.result()
    assert pid != os.getpid() == ppid, (pid, ppid)
    assert bad.refresh().reason == "not_retryable", bad.refresh()
    [only] = harbor.jobs.list(task=child.name)
    assert only.result() == 1
    print("fine", child.name)

{run}
"""


def run_program(folder: Path, *words: str, run: str) -> subprocess.CompletedProcess[str]:
    url = f"sqlite:///{folder}/harbor.db"
    (folder / "program.py").write_text(SCRIPT.format(url=url, run=run))
    return subprocess.run(
        [sys.executable, *words], cwd=folder, capture_output=True, text=True, timeout=110, check=False
    )


@pytest.mark.parametrize("words", [("program.py",), ("-m", "program")], ids=["script", "module"])
def test_a_program_whose_tasks_are_in_its_main_module(tmp_path, words):
    ran = run_program(tmp_path, *words, run='if __name__ == "__main__":\n    main()')
    assert ran.stdout.split() == ["fine", "program.child"], ran.stderr


def test_a_program_without_its_guard_does_not_do_it_all_again(tmp_path):
    ran = run_program(
        tmp_path, "program.py", run="parent.enqueue(1)\nWorker(harbor, concurrency=1).drain_sync()"
    )
    assert 'put what the program does under `if __name__ == "__main__":`' in ran.stderr
    with Harbor(f"sqlite:///{tmp_path}/harbor.db") as harbor:
        assert sum(harbor.jobs.counts().values()) <= 2  # the one, and its child if it could be imported


@pytest.mark.parametrize("function", ["hang", "hang_in_c", "with_grandchild"])
def test_a_killed_worker_takes_its_processes_along(tmp_path, function):
    begun = tmp_path / "begun"
    app = (
        "from taskharbor import Harbor\n"
        "from tests.worker import isolated\n"
        f"harbor = Harbor('sqlite:///{tmp_path}/harbor.db')\n"
        f"task = harbor.task(name='t', isolation='process')(isolated.{function})\n"
    )
    (tmp_path / "app.py").write_text(app)
    with Harbor(f"sqlite:///{tmp_path}/harbor.db") as harbor:
        harbor.enqueue("t", {"begun": str(begun)})
    root = str(Path(__file__).parents[2])
    worker = subprocess.Popen(
        [sys.executable, "-m", "taskharbor.cli", "worker", "-A", "app:harbor"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": root},
        stderr=subprocess.DEVNULL,
    )
    try:
        isolated.wait_for_file(begun)
        processes = {*children_of(worker.pid), int(begun.read_text())}
        assert len(processes) >= 2
    finally:
        worker.kill()
        worker.wait()
    give_up_at = time.monotonic() + 60
    while any(map(is_alive, processes)):
        assert time.monotonic() < give_up_at, processes
        time.sleep(0.01)


def test_the_applications_own_setup_comes_first(tmp_path):
    """Tasks in a module that can only be imported after the application has set something up."""
    (tmp_path / "settings.py").write_text("ready = False\n")
    (tmp_path / "tasks.py").write_text(
        "import settings\nassert settings.ready\ndef work() -> str:\n    return 'worked'\n"
    )
    (tmp_path / "app.py").write_text(
        "import settings\nsettings.ready = True\nfrom taskharbor import Harbor\nimport tasks\nharbor = Harbor()\n"
        "work = harbor.task(name='work', isolation='process')(tasks.work)\n"
    )
    url = f"sqlite:///{tmp_path}/harbor.db"
    with Harbor(url) as harbor:
        job = harbor.enqueue("work")
        words = [
            "-m",
            "taskharbor.cli",
            "worker",
            "-A",
            "app:harbor",
            "--url",
            url,
            "--drain",
            "--log-format",
            "json",
        ]
        ran = subprocess.run(
            [sys.executable, *words], cwd=tmp_path, capture_output=True, text=True, timeout=110, check=True
        )
        assert job.refresh().state is State.SUCCEEDED, ran.stderr
        assert all(json.loads(line)["level"] == "INFO" for line in ran.stderr.splitlines())
