"""With USE_TZ off, Django's moments have no zone; they are in that of the project."""

from __future__ import annotations

from datetime import datetime, timedelta

from shop import tasks


def test_moments_are_in_the_zone_of_the_project(drain):
    now = datetime.now()  # noqa: DTZ005 - in the zone of the process, which Django sets to the project's
    later = tasks.note.using(run_after=now + timedelta(hours=1)).enqueue("later")
    result = tasks.note.using(run_after=now - timedelta(hours=1)).enqueue("now")
    drain()
    result.refresh()
    assert tasks.seen == ["now"]
    assert tasks.note.get_result(later.id).task.run_after == now + timedelta(hours=1)
    for moment in (result.enqueued_at, result.started_at, result.finished_at):
        assert moment.tzinfo is None
        assert now - timedelta(minutes=10) < moment < now + timedelta(minutes=10)
