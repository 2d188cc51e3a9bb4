"""`taskharbor why`"""

from __future__ import annotations

import json


def test_why_is_one_line(run, harbor):
    job = harbor.enqueue("send", queue="mail")
    assert run("why", job.id).out == (
        "No worker serves the queue mail (by the workers' records; they last 50 s): start one with taskharbor worker "
        "-A … --queues mail\n"
    )


def test_line_to_copy_has_the_options_that_this_one_was_given(run, harbor, url, tmp_path, monkeypatch):
    """What the environment names, it names for the pasted line as well."""
    (tmp_path / "pasted_shop.py").write_text(f"from taskharbor import Harbor\nharbor = Harbor({url!r})\n")
    job = harbor.enqueue("send", queue="mail")
    harbor.queues.pause("mail")
    line = "resume it with taskharbor queue resume mail"
    assert run("why", job.id).out.endswith(f"{line} --url {url}\n")
    assert run("why", job.id, "-A", "pasted_shop:harbor", store=None).out.endswith(
        f"{line} -A pasted_shop:harbor\n"
    )
    monkeypatch.setenv("TASKHARBOR_APP", "pasted_shop:harbor")
    assert run("why", job.id, store=None).out.endswith(f"{line}\n")
    monkeypatch.delenv("TASKHARBOR_APP")
    monkeypatch.setenv("TASKHARBOR_URL", url)
    assert run("why", job.id, store=None).out.endswith(f"{line}\n")
    harbor.queues.resume("mail")
    started = run("why", job.id, "-A", "pasted_shop:harbor", store=None).out
    assert started.endswith("start one with taskharbor worker -A pasted_shop:harbor --queues mail\n")


def test_why_takes_the_beginning_of_an_id_and_shows_the_facts(run, harbor):
    job = harbor.enqueue("send", delay=3_600)
    sentence, *facts = run("why", job.id[:13], "--facts").out.splitlines()
    assert sentence.startswith("It is not due until ")
    assert [line.split()[0] for line in facts] == ["reason", "until"]
    assert facts[0].split() == ["reason", "code", "not_due"]


def test_why_as_json_has_every_fact(run, harbor):
    job = harbor.enqueue("send", queue="mail")
    document = json.loads(run("why", job.id, "--json").out)
    assert (document["id"], document["code"]) == (job.id, "no_worker")
    facts = document["facts"]
    assert (facts["state"], facts["queue"], facts["workers"], facts["until"]) == ("ready", "mail", 0, None)


def test_why_of_an_unknown_job_fails(run, empty):
    assert "no job has the id" in run("why", "019b76da-a800-7000-8000-000000000001", code=1).err
