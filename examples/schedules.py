"""A schedule: a job that re-arms itself, and what becomes of occurrences that were missed."""

from __future__ import annotations

from datetime import UTC, datetime

from taskharbor import Harbor, Worker
from taskharbor.clock import ManualClock
from taskharbor.schedule import every, parse


def main() -> None:
    # A clock that the program sets, so that a day passes at once.
    clock = ManualClock(datetime(2026, 3, 7, 12, tzinfo=UTC))
    with Harbor("memory://", clock=clock) as harbor:
        ran: list[str] = []

        @harbor.task(name="nightly", schedule="30 2 * * *", timezone="America/New_York")
        def nightly() -> None:
            ran.append("nightly")

        @harbor.task(name="poll", schedule=every(60), misfire="skip")
        def poll() -> None:
            ran.append("poll")

        worker = Worker(harbor)
        worker.drain_sync()  # a worker that starts stores the schedules that the code declares
        for schedule in harbor.schedules.list():
            print(f"{schedule.name}: {schedule.schedule}, next {schedule.next_run_at}")

        # That night clocks go from 2:00 to 3:00, so 2:30 is at the end of the gap.
        assert harbor.schedules.get("nightly").due_at == datetime(2026, 3, 8, 7, tzinfo=UTC)

        clock.advance(24 * 3600)  # no worker runs for a day
        worker.drain_sync()
        print(ran)
        assert ran == ["nightly"]  # one run for the missed night; the 1440 missed polls are dropped

        clock.advance(60)
        worker.drain_sync()
        assert ran == ["nightly", "poll"]

        harbor.schedules.run_now("nightly")  # an extra run
        worker.drain_sync()
        assert ran == ["nightly", "poll", "nightly"]
        assert harbor.schedules.get("nightly").due_at == datetime(2026, 3, 9, 6, 30, tzinfo=UTC)

        # The same arithmetic without a harbor.
        assert parse("@hourly").next_after(datetime(2026, 1, 1, tzinfo=UTC)) == datetime(
            2026, 1, 1, 1, tzinfo=UTC
        )


if __name__ == "__main__":
    main()
