"""`taskharbor audit`, and where other commands say who acted."""

from __future__ import annotations

from taskharbor import Harbor
from taskharbor.acting import user_at_host
from tests.cli.conftest import Run


def test_audit_lists_what_commands_did(run: Run) -> None:
    """Each under user@host, the latest first; a filter narrows the list, and a cursor goes on."""
    job_id = run("enqueue", "echo", "--delay", "1h").out.strip()
    run("queue", "pause", "mail")
    run("cancel", job_id)
    table = run("audit").out
    assert table.index("job.cancel") < table.index("queue.pause")
    document = run("audit", "--limit", "1", "--json").document
    assert [(each["verb"], each["actor"]) for each in document["items"]] == [("job.cancel", user_at_host())]
    rest = run("audit", "--cursor", document["nextCursor"], "--json").document
    assert [(each["verb"], each["subject"]) for each in rest["items"]] == [("queue.pause", "mail")]
    assert run("audit", "--job", job_id, "--json").document["items"] == document["items"]
    assert "job.cancel" not in run("audit", "--actor", "ana").out
    assert "the verbs are" in run("audit", "--verb", "explode", code=1).error


def test_inspect_and_queue_list_say_who(run: Run, url: str) -> None:
    """Of a job, the latest action; of a paused queue, who paused it and since when."""
    with Harbor(url) as harbor:
        job = harbor.enqueue("echo")
        with harbor.acting_as("ana"):
            harbor.jobs.cancel(job.id)
            harbor.queues.pause("mail")
    assert "job.cancel by ana at " in run("inspect", job.id).out
    assert run("inspect", job.id, "--json").document["latestAction"]["actor"] == "ana"
    listed = run("queue", "list").out
    assert "PAUSED BY" in listed
    assert "ana" in listed


def test_token_commands_are_recorded(run: Run) -> None:
    """With the name and the id, never with the token itself."""
    created = run("token", "create", "deployment", "--role", "read", "--json").document
    run("token", "revoke", created["id"])
    audit = run("audit", "--json")
    assert [each["verb"] for each in audit.document["items"]] == ["token.revoke", "token.create"]
    assert {each["subject"] for each in audit.document["items"]} == {created["id"]}
    secret = created["token"].split("_", 2)[2]  # which may have underscores itself
    assert secret not in audit.out
