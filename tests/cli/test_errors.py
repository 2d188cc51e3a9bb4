"""Errors are one line on standard error, with a code that says whose fault it was."""

from __future__ import annotations

import os
import subprocess

import pytest
from click.testing import CliRunner

from taskharbor.cli import cli
from tests.cli.conftest import COMMAND

NOBODY = "0197f3c2-8a5e-7cc3-98c8-5d1f9a3b2c10"


@pytest.mark.parametrize(
    "words",
    [
        ["inspect"],
        ["cancel"],
        ["job", "retry"],
        ["job", "run-now"],
        ["job", "update", "--priority", "1"],
        ["job", "delete"],
        ["dlq", "requeue"],
        ["dlq", "discard"],
    ],
    ids=" ".join,
)
def test_a_job_that_is_not_there(run, empty, words):
    assert run(*words, NOBODY, code=1).error.startswith(f"no job has the id {NOBODY}")
    assert "a job's id is a UUID" in run(*words, "42", code=1).error


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["lisst"], "No such command 'lisst'"),
        (["list", "--colour"], "No such option"),
        (["list", "--state", "gone"], "'gone' is not one of"),
        (["list", "--state", "dead", "--state", "ready"], "it takes one state, and dead, ready were given"),
        (["list", "--limit", "0"], "0 is not in the range"),
        (["inspect"], "Missing argument 'ID...'"),
        (["enqueue", "echo", "--delay", "soon"], "not a duration"),
        (["enqueue", "echo", "--run-at", "tomorrow"], "not a time in ISO 8601"),
        (["worker", "--concurrency", "none"], "not a valid integer"),
        (["demo", "--url", "memory://"], "cannot share memory://"),
    ],
)
def test_usage_errors_name_the_help(run, words, message):
    error = run(*words, store=None, code=2).error
    assert message in error
    assert error.endswith("--help`)")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["enqueue", "echo", "--priority", "1000"], "priority must be a whole number from -100 to 100"),
        (["enqueue", " echo"], "whitespace"),
        (["enqueue", "echo", "--max-attempts", "2", "--max-retries", "1"], "max_retries"),
        (["enqueue", "echo", "--delay", "1", "--run-at", "2999-01-01T00:00:00Z"], "say the same thing"),
        (["queue", "pause", ""], "it is empty"),
        (["list", "--cursor", "x"], "UUID"),
    ],
)
def test_errors_of_the_harbor_are_told_as_they_are(run, empty, words, message):
    assert message in run(*words, code=1).error


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("nonsense", "a store's URL looks like"),
        ("mysql://root:hunter2@db/x", "no driver for"),
        ("sqlite:////no/such/folder/x.db", "folder"),
    ],
)
def test_stores_that_cannot_be_used(run, url, message):
    error = run("list", store=url, code=1).error
    assert message in error
    assert "hunter2" not in error


def test_a_store_that_nobody_named_is_not_made_by_looking(run, tmp_path):
    error = run("list", store=None, code=1).error
    assert f"{tmp_path}/taskharbor.db does not exist" in error
    assert not list(tmp_path.iterdir())
    run("enqueue", "echo", store=None)
    assert len(run("list", store=None).out.splitlines()) == 2


@pytest.mark.parametrize(
    "words",
    [
        ["list"],
        ["inspect", NOBODY],
        ["cancel", NOBODY],
        ["job", "delete", NOBODY],
        ["stats"],
        ["dlq", "list"],
        ["dlq", "requeue-all"],
        ["queue", "list"],
        ["prune", "--yes"],
        ["doctor"],
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_a_store_whose_name_was_mistyped_is_not_made_by_looking(run, tmp_path, monkeypatch, words):
    file = tmp_path / "typo.db"
    expected = f"{file} does not exist; check the name, or make it with `taskharbor migrate`"
    assert run(*words, store=f"sqlite:///{file}", code=1).error == expected
    monkeypatch.setenv("TASKHARBOR_URL", f"sqlite:///{file}")
    assert run(*words, store=None, code=1).error == expected
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "words", [["enqueue", "echo"], ["migrate"], ["worker", "--drain"], ["queue", "pause", "mail"]]
)
def test_what_writes_makes_the_store(run, tmp_path, words):
    store = f"sqlite:///{tmp_path}/new.db"
    run(*words, store=store)
    assert run("list", "--json", store=store).document["items"] == [] or words[0] == "enqueue"


def test_the_store_may_come_from_the_environment(run, url, harbor, monkeypatch):
    monkeypatch.setenv("TASKHARBOR_URL", url)
    job_id = harbor.enqueue("echo").id
    assert job_id in run("list", store=None).out


def test_what_was_not_foreseen_is_one_line_too(run, monkeypatch):
    monkeypatch.setattr("taskharbor.cli.session.Session.run", lambda *_: 1 / 0)
    assert "ZeroDivisionError: division by zero (unexpected;" in run("list", code=1).error
    monkeypatch.setenv("TASKHARBOR_TRACEBACK", "1")
    answer = CliRunner().invoke(cli, ["list"])
    assert isinstance(answer.exception, ZeroDivisionError)


def test_ctrl_c_is_no_traceback(run, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("taskharbor.cli.session.Session.run", interrupted)
    answer = run("list", code=130)
    assert answer.err.strip().splitlines()[-1] == "Error: interrupted"


def test_a_closed_pipe_ends_it_quietly(url, harbor):
    harbor.enqueue_many(harbor.tasks["echo"].s(number) for number in range(900))
    words = [*COMMAND, "list", "--limit", "900", "--json", "--url", url]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""


def test_letters_that_the_output_cannot_hold_are_no_failure(url, harbor):
    job = harbor.enqueue("echo", {"message": "größe →"})
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    for words in (["inspect", job.id], ["inspect", job.id, "--json"]):
        subprocess.run(
            [*COMMAND, *words, "--url", url], env=environment, check=True, capture_output=True, timeout=60
        )
