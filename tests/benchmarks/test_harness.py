"""The benchmarks' harness: what its tables say, and that it runs on a server of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

import pytest

import taskharbor
from benchmarks import foreign, installing
from benchmarks.child import check_checkout
from benchmarks.cli import with_other_checkout
from benchmarks.contestant import Role
from benchmarks.contestants.taskharbor_memory import TaskHarborMemory
from benchmarks.contestants.taskharbor_postgres import TaskHarborPostgres, TaskHarborPostgresSync
from benchmarks.contestants.taskharbor_sqlite import TaskHarborSqlite
from benchmarks.discovery import Entry, discover, other_label
from benchmarks.durations import jobs_at_peak
from benchmarks.measures import DRAIN_FIGURES
from benchmarks.noise import measure_noise
from benchmarks.postgres import URL_VARIABLE, database_of, url_of
from benchmarks.processes import family_seconds
from benchmarks.report import against_table, durations_table, noise_table, scaling_table, snapshot_tables
from benchmarks.rounds import Samples
from benchmarks.scaling import can_share, drain_by_processes
from benchmarks.settings import CHECKOUT_VARIABLE, Settings
from benchmarks.snapshot import can_churn
from benchmarks.summary import summarize
from benchmarks.work import KINDS, Work

ROOT = Path(__file__).parents[2]


class Ours(TaskHarborMemory):
    name = "ours"
    role: ClassVar[Role] = "taskharbor"


class Theirs(Ours):
    name = "theirs"
    role: ClassVar[Role] = "peer"


def test_less_is_better_where_time_is_measured() -> None:
    samples = Samples(
        {"ours": {"latency_p50": [2.0], "drain": [30.0]}, "theirs": {"latency_p50": [3.0], "drain": [10.0]}}
    )
    best = {figure: summarize(figure, [Theirs, Ours], samples)[0] for figure in ("latency_p50", "drain")}
    assert {figure: (line.contestant, line.ratios[0]) for figure, line in best.items()} == {
        "latency_p50": (Ours, 1.5),
        "drain": (Ours, 3.0),
    }


def test_several_processes_are_compared_with_the_fewest() -> None:
    samples = Samples(
        {"ours": {"processes_4": [30.0], "processes_1": [10.0, 20.0, 15.0], "processes_2": [30.0]}}
    )
    rows = scaling_table([Ours], samples, 100).rows
    assert [(row[1], row[2], row[4]) for row in rows] == [
        ("1", "15.0", "1.00x"),
        ("2", "30.0", "2.00x"),
        ("4", "30.0", "2.00x"),
    ]


def test_checkouts_are_compared_within_a_round() -> None:
    samples = Samples()
    for number, (new, old) in enumerate([(20.0, 10.0), (30.0, 10.0), (9.0, None), (40.0, 10.0)], 1):
        samples.add("ours", {"drain": new, "latency_p50": 1.0}, number)
        if old is not None:  # a measurement that failed is missing, and its round is left out
            samples.add(other_label("ours"), {"drain": old}, number)
    assert against_table([Ours], samples).rows == [
        ["ours", "drain, one worker process", "25.0", "10.0", "3.00x", "2.00x\N{EN DASH}4.00x", "more"]
    ]


def test_another_checkout_runs_right_after_ours_and_never_for_a_peer() -> None:
    ours, theirs = Entry("taskharbor_memory", Ours), Entry("theirs", Theirs)
    assert with_other_checkout(ours, ROOT) == [ours, Entry("taskharbor_memory", Ours, ROOT)]
    assert with_other_checkout(theirs, ROOT) == [theirs]
    assert with_other_checkout(ours, None) == [ours]


def test_a_child_refuses_code_of_another_checkout_than_it_was_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(CHECKOUT_VARIABLE, str(tmp_path))
    with pytest.raises(RuntimeError, match=f"not from {tmp_path}"):
        check_checkout()
    monkeypatch.setenv(CHECKOUT_VARIABLE, str(Path(taskharbor.__file__).parent.parent))
    check_checkout()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the kernel is asked, and only Linux can be")
def test_a_child_ends_when_its_parent_is_killed() -> None:
    program = (
        "import subprocess, sys; from benchmarks.processes import end_with_parent; "
        "subprocess.Popen(['sleep', '600'], preexec_fn=end_with_parent); print('started', flush=True); "
        "sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"started\n"
        parent.kill()
        assert parent.stdout.read() == b""  # ends when the last process that holds the pipe is gone


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="read from the kernel")
def test_time_of_a_family_counts_children_that_have_ended() -> None:
    before = family_seconds(os.getpid())
    subprocess.run([sys.executable, "-c", "sum(range(3_000_000))"], check=True)
    after = family_seconds(os.getpid())
    assert before is not None
    assert after is not None
    assert after - before > 0.02


def test_noise_is_the_time_of_fixed_work(tmp_path: Path) -> None:
    samples = Samples()
    for _ in range(3):
        samples.hear(measure_noise(tmp_path))
    assert [row[0] for row in noise_table(samples).rows] == ["processor, ms", "disk, µs"]
    assert all(len(seen) == 3 and min(seen) > 0 for seen in samples.noise.values())


def test_slices_are_compared_with_the_one_before_the_snapshot() -> None:
    samples = Samples({"ours": {"before 1": [20.0], "held 1": [10.0], "after 1": [19.0]}})
    [table] = snapshot_tables([Ours], samples, 60)
    assert [(row[0], row[3]) for row in table.rows] == [
        ("before 1", "1.00x"),
        ("held 1", "0.50x"),
        ("after 1", "0.95x"),
    ]


def test_only_a_store_that_outlives_its_process_is_shared_or_held() -> None:
    assert [can_share(one) for one in (TaskHarborMemory, TaskHarborPostgres, TaskHarborPostgresSync)] == [
        False,
        True,
        False,
    ]
    assert [can_churn(one) for one in (TaskHarborMemory, TaskHarborPostgres, TaskHarborPostgresSync)] == [
        False,
        True,
        False,
    ]


def test_a_directory_names_its_database(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(URL_VARIABLE, "postgresql://me:secret@host:5433/postgres?sslmode=require")
    assert url_of(tmp_path / "bench-a_b1") == "postgresql://me:secret@host:5433/bench_a_b1?sslmode=require"
    with pytest.raises(ValueError, match="names its database"):
        database_of(tmp_path / "bench; DROP DATABASE x")


def test_a_peer_that_is_not_installed_is_told_and_not_fatal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pgqueuer", None)
    monkeypatch.delitem(sys.modules, "benchmarks.contestants.pgqueuer_postgres", raising=False)
    found = discover()
    assert "pgqueuer" in found.absent["pgqueuer_postgres"]
    assert "taskharbor postgres" in {entry.contestant.name for entry in found.entries}


def test_one_that_cannot_be_installed_does_not_keep_the_others_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []

    def install(*arguments: str) -> bool:
        asked.append(arguments[-1])
        return "[bench]" not in arguments[-1] and not arguments[-1].startswith("chancy")

    monkeypatch.setattr(installing, "install", install)
    monkeypatch.setattr(foreign, "install", lambda: ["River: go is not installed"])  # builds nothing
    assert installing.main() == 0
    assert any(one.startswith("saq") for one in asked)
    assert any(one.startswith("asyncpg") for one in asked)  # of our own extras
    told = capsys.readouterr().err
    assert "left out, since it could not be installed: chancy" in told
    assert "left out: River: go is not installed" in told


def test_a_run_measures_on_a_durable_server_of_its_own_and_writes_its_tables(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "benchmarks",
        "--quick",
        "--jobs",
        "400",
        "--only",
        "taskharbor postgres",
    ]
    command += ["--measure", "enqueue_bulk", "--measure", "drain", "--json", str(tmp_path / "results.json")]
    environment = {name: value for name, value in os.environ.items() if name != URL_VARIABLE}
    done = subprocess.run(
        [*command, "--markdown", str(tmp_path / "results.md")],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["failures"] == []
    assert set(results["samples"]["taskharbor postgres"]) == {"enqueue_bulk", *DRAIN_FIGURES}
    assert all(len(seen) == 4 for seen in results["noise"].values())
    assert "fsync=on" in results["machine"]["PostgreSQL"]
    assert "synchronous_commit=on" in results["machine"]["PostgreSQL"]
    text = (tmp_path / "results.md").read_text()
    assert "## drain, one worker process" in text
    assert "| taskharbor postgres (sync) | \N{EN DASH} |" in text  # its worker would be the same


def test_work_is_written_as_it_is_read() -> None:
    for kind in KINDS:
        for milliseconds in (0, 1, 2.5, 100):
            work = Work(kind, milliseconds)
            assert Work.parse(str(work)) == work
    with pytest.raises(ValueError, match="written like"):
        Work.parse("async 10 s")


def test_longer_handlers_are_measured_with_fewer_jobs() -> None:
    settings = Settings(jobs=20_000)
    counts = [jobs_at_peak(Work("sync", each), settings) for each in (0, 1, 10, 100)]
    assert counts == [20_000, 20_000, 20_000, 2_000]
    assert jobs_at_peak(Work("process", 100), settings) == 80
    assert jobs_at_peak(Work("async", 0), Settings.quick()) == Settings.quick().jobs


def test_a_row_for_each_kind_and_duration_that_a_contestant_has() -> None:
    figures = {"drain": 100.0, "worker_cpu": 2.0, "idle_p50": 1.5, "half_p50": 3.0, "half_p99": 9.0}
    samples = Samples()
    samples.add("ours", {f"sync 10 ms: {name}": value for name, value in figures.items()})
    assert [row[:3] + row[4:] for row in durations_table([Ours, Theirs], samples).rows] == [
        ["sync 10 ms", "ours", "100.0", "2.00", "\N{EN DASH}", "1.50", "3.00", "9.00"]
    ]


def test_processes_that_share_a_store_run_each_job_once(tmp_path: Path) -> None:
    contestant = TaskHarborSqlite(poll_seconds=0.01)
    figures = drain_by_processes(
        "taskharbor_sqlite", contestant, 2, Settings(memory_jobs=60, timeout_seconds=60), tmp_path
    )
    assert figures["processes_2"]
    assert figures["processes_server_cpu_2"] is None  # there is no server
