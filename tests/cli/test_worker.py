"""taskharbor worker, mostly as the process that it is."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
import time

import pytest

from taskharbor import State, presets
from taskharbor.worker.garbage import DEFAULT_THRESHOLDS, YOUNG_OBJECTS
from tests.cli.conftest import COMMAND


def test_drain_executes_what_is_there_and_ends(run, harbor):
    job = harbor.enqueue("echo", {"message": "hi"})
    answer = run("worker", "--drain", "--json")
    assert answer.document["counts"] == {**dict.fromkeys(map(str, State), 0), "succeeded": 1}
    assert answer.document["worker"]
    lines = [json.loads(line) for line in answer.err.splitlines()]
    assert [line["message"] for line in lines if line.get("job") == job.id] == [f"Job {job.id} succeeded"]
    assert "only the built-in tasks are known" in lines[0]["message"]
    assert lines[1]["tasks"] == ["echo", "fail", "sleep"]


def test_only_the_queues_that_were_named_are_served(run, harbor):
    jobs = [harbor.enqueue("echo", queue=queue) for queue in ("a", "b", "c")]
    run("worker", "--drain", "--queues", "a, b", "--log-level", "error")
    assert [job.refresh().state for job in jobs] == [State.SUCCEEDED, State.SUCCEEDED, State.READY]


def test_options_are_checked(run):
    assert "lease_seconds must be 0.1 or more" in run("worker", "--drain", "--lease-seconds", "0", code=1).err
    assert "it is empty" in run("worker", "--drain", "--queues", "a,,b", code=1).err


def wait_for(condition, seconds=60.0):
    give_up_at = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < give_up_at
        time.sleep(0.02)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_running_jobs_finish_and_ends_with_0(started, harbor, url, number):
    job = harbor.enqueue("sleep", {"seconds": 0.5})
    process = started("worker", "--url", url, "--grace-seconds", "60")
    wait_for(lambda: job.refresh().state is State.RUNNING)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0
    assert job.refresh().state is State.SUCCEEDED
    assert err.splitlines()[-1].endswith(" stopped")


def test_a_worker_that_has_begun_its_jobs_lets_them_finish_and_ends_with_0(started, harbor, url):
    jobs = [harbor.enqueue("sleep", {"seconds": 1.5}, delivery="at_most_once") for _ in range(2)]
    late = harbor.enqueue("echo", priority=-1)
    process = started("worker", "--url", url, "--max-jobs", "2", "--grace-seconds", "0.1")
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0
    assert [job.refresh().state for job in jobs] == [State.SUCCEEDED] * 2
    assert late.refresh().state is State.READY
    assert "it has begun 2 jobs" in err
    assert err.splitlines()[-1].endswith(" stopped")


def test_a_worker_with_more_memory_than_it_may_have_ends_with_0(started, url):
    process = started("worker", "--url", url, "--max-memory", "5")
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "MiB of memory, more than 5" in err


def test_after_the_grace_a_job_is_released_uncounted(started, harbor, url):
    job = harbor.enqueue("sleep", {"seconds": 60})
    process = started("worker", "--url", url, "--grace-seconds", "0.1")
    wait_for(lambda: job.refresh().state is State.RUNNING)
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode == 0
    assert (job.refresh().state, job.refresh().attempts) == (State.READY, 0)
    assert [attempt.status for attempt in job.history()] == ["released"]


def test_a_second_signal_ends_at_once(started, harbor, url, tmp_path):
    (tmp_path / "heedless.py").write_text(
        "import asyncio\n"
        "from pathlib import Path\n"
        "from taskharbor import Context, Harbor\n"
        "harbor = Harbor()\n"
        "@harbor.task(name='heedless')\n"
        "async def heedless(ctx: Context) -> None:\n"
        "    while not ctx.cancelled:\n"
        "        await asyncio.sleep(0.01)\n"
        "    Path('told').touch()\n"
        "    await asyncio.sleep(3600)\n"
    )
    job = harbor.enqueue("heedless")
    process = started("worker", "-A", "heedless:harbor", "--url", url, "--grace-seconds", "3600")
    wait_for(lambda: job.refresh().state is State.RUNNING)
    process.terminate()
    wait_for((tmp_path / "told").exists)  # the first signal has arrived, and the grace period has begun
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode == 0
    assert job.refresh().state is State.RUNNING  # until its lease runs out


def test_an_application_s_tasks_are_executed(started, harbor, url, tmp_path):
    (tmp_path / "shop.py").write_text(
        "from taskharbor import Harbor\n"
        "harbor = Harbor()\n"
        "@harbor.task(name='order')\n"
        "def order(item: str) -> str:\n"
        "    return item.upper()\n"
    )
    job = harbor.enqueue("order", {"item": "tea"})
    process = started("worker", "-A", "shop:harbor", "--url", url, "--drain", cwd=tmp_path)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert job.result(timeout=0) == "TEA"


@pytest.mark.parametrize("words", [[], ["--default-gc"], ["--processes", "1"]])
def test_a_worker_process_collects_garbage_less_often(started, harbor, url, tmp_path, words):
    (tmp_path / "shop.py").write_text(
        "import gc\n"
        "from taskharbor import Harbor\n"
        "harbor = Harbor()\n"
        "@harbor.task(name='thresholds')\n"
        "def thresholds() -> int:\n"
        "    return gc.get_threshold()[0]\n"
    )
    job = harbor.enqueue("thresholds")
    process = started("worker", "-A", "shop:harbor", "--url", url, "--drain", *words, cwd=tmp_path)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert job.result(timeout=0) == (DEFAULT_THRESHOLDS[0] if words == ["--default-gc"] else YOUNG_OBJECTS)


def test_a_store_that_cannot_be_opened_is_one_line(started):
    process = started("worker", "--url", "sqlite:////no/such/folder/x.db", "--log-level", "error")
    out, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert err.startswith("Error: ")
    assert len(err.splitlines()) == 1
    assert out == ""


@pytest.mark.skipif(sys.platform == "win32", reason="a shell that closes descriptors")
@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_commands_do_their_work_with_closed_streams(harbor, url, closed):
    """As a daemon's may be."""
    job = harbor.enqueue("echo", {"message": "hi"})
    words = shlex.join([*COMMAND, "worker", "--drain", "--url", url])
    assert subprocess.run(["sh", "-c", f"{words} {closed}"], timeout=60, check=False).returncode == 0
    assert job.refresh().state is State.SUCCEEDED
    words = shlex.join([*COMMAND, "stats", "--url", url])
    assert subprocess.run(["sh", "-c", f"{words} {closed}"], timeout=60, check=False).returncode == 0


def test_a_handler_that_does_not_end_ends_the_worker_with_a_status_of_its_own(started, harbor, tmp_path, url):
    (tmp_path / "stubborn.py").write_text(
        "import time\n"
        "from taskharbor import Harbor\n"
        "harbor = Harbor()\n"
        "@harbor.task(name='deaf', timeout=0.1, max_attempts=1)\n"
        "def deaf() -> None:\n"
        "    while True:\n"
        "        try:\n"
        "            time.sleep(0.01)\n"
        "        except BaseException:\n"
        "            pass\n"
    )
    job = harbor.enqueue("deaf")
    worker = started("worker", "-A", "stubborn:harbor", "--url", url, "--unresponsive-seconds", "500ms")
    _, err = worker.communicate(timeout=60)
    assert worker.returncode == 75
    assert "Error: a handler of deaf did not end within 0.5 s of the request" in err
    assert "Traceback" not in err
    assert [str(attempt.status) for attempt in job.history()] == ["timed_out"]
    assert job.refresh().state == "dead"


# -- the worker's own policy ---------------------------------------------------------------------


def failed(run, harbor, *words, **options):
    """A job of a task that fails each time, after one execution by a worker with these options."""
    job = harbor.enqueue("fail", **options)
    run("worker", "--drain", "--log-level", "error", *words)
    return job.refresh()


def test_retry_names_the_policy_of_jobs_without_one(run, harbor):
    assert failed(run, harbor, "--retry", "email").state is State.SCHEDULED
    assert failed(run, harbor, "--retry", "none").state is State.DEAD
    assert failed(run, harbor, "--retry", "none", retry=presets.EMAIL).state is State.SCHEDULED
    assert failed(run, harbor, "--retry", "NETWORK").reason == "not_retryable"


def test_max_attempts_caps_every_jobs_limit(run, harbor):
    assert failed(run, harbor, "--max-attempts", "1", max_attempts=9).reason == "exhausted"
    assert failed(run, harbor, "--max-attempts", "2", max_attempts=9).state is State.SCHEDULED
    assert failed(run, harbor, "--retry", "standard", "--max-attempts", "1").state is State.DEAD


def test_a_cap_without_a_policy_is_refused(run, empty):
    error = run("worker", "--drain", "--retry", "none", "--max-attempts", "3", code=1).err
    assert "max_attempts caps the worker's policy, but there is none" in error


def test_tracebacks_are_logged_unless_told_otherwise(run, harbor):
    harbor.enqueue("fail", max_attempts=1)
    assert "    | RuntimeError: " in run("worker", "--drain").err
    harbor.enqueue("fail", max_attempts=1)
    assert "    | " not in run("worker", "--drain", "--no-tracebacks").err
