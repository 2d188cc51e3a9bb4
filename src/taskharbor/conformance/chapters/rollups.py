"""Roll-ups: rows that workers append, and that are folded into minutes and hours."""

from __future__ import annotations

from taskharbor.conformance.store import DAY, HOUR, MINUTE, SECOND, Chapter, Store
from taskharbor.drivers import capabilities
from taskharbor.drivers.contract.rollups import Figures, Period, Rollup
from taskharbor.rules.rollups import OTHER, PAIRS_MAX, added

ONE = Figures(
    enqueued=1, started=2, succeeded=3, failed=4, retried=5, dead=6, lost=7, cancelled=8,
    wait=(10, 0, 1), duration=(90, 1),
)  # fmt: skip
TWO = Figures(started=1, wait=(5, 1, 0, 4), duration=(7, 2))
LIMIT = 1_000


class Rollups(Chapter):
    needs = capabilities.Rollups

    def minute(self, store: Store, ago: int = 0) -> int:
        """The begin of the minute that was this long ago."""
        at = store.now - ago
        return at - at % MINUTE

    def append(
        self, store: Store, at: int, figures: Figures = ONE, queue: str = "mail", task: str = "t"
    ) -> Rollup:
        row = Rollup(at, queue, task, figures)
        store.run(capabilities.Rollups.of(store.driver).append_rollups([row]))
        return row

    def fold(self, store: Store, limit: int = LIMIT) -> int:
        return store.run(capabilities.Rollups.of(store.driver).fold_rollups(limit, now=store.now))

    def read(
        self,
        store: Store,
        period: Period = Period.MINUTE,
        queue: str | None = None,
        task: str | None = None,
        begin: int = 0,
        end: int | None = None,
    ) -> list[Rollup]:
        end = store.now + 100 * DAY if end is None else end
        return store.run(
            capabilities.Rollups.of(store.driver).rollups(begin, end, period, queue=queue, task=task)
        )

    # -- append and read --

    def test_appended_roll_up_comes_back_with_every_figure(self, store: Store) -> None:
        """Without a fold, as it was given."""
        row = self.append(store, self.minute(store))
        assert self.read(store) == [row]

    def test_rows_of_one_minute_queue_and_task_add_up(self, store: Store) -> None:
        """Each worker appends its own rows; the reader sees their sum."""
        at = self.minute(store)
        for figures in (ONE, TWO, Figures()):
            self.append(store, at, figures)
        [row] = self.read(store)
        assert row.figures == added(ONE, TWO)
        assert (row.figures.started, row.figures.wait, row.figures.duration) == (3, (15, 1, 1, 4), (97, 3))

    def test_roll_ups_come_by_period_queue_and_task(self, store: Store) -> None:
        """Those of another minute, queue or task are other rows."""
        at = self.minute(store)
        later = self.append(store, at + MINUTE)
        tasks = [self.append(store, at, task=task) for task in ("u", "t")]
        queue = self.append(store, at, queue="Z")
        assert self.read(store) == [queue, tasks[1], tasks[0], later]

    def test_roll_ups_are_read_from_begin_to_before_end(self, store: Store) -> None:
        """A series includes the row of its begin, and not the row of its end."""
        at = self.minute(store)
        rows = [self.append(store, at + minute * MINUTE) for minute in range(4)]
        assert self.read(store, begin=at + MINUTE, end=at + 3 * MINUTE) == rows[1:3]

    def test_roll_ups_are_read_by_queue_and_by_task(self, store: Store) -> None:
        """Appended ones and folded ones."""
        at = self.minute(store, ago=10 * MINUTE)
        for _ in range(2):
            pairs = [("mail", "t"), ("mail", "u"), ("vip", "t")]
            rows = [self.append(store, at, ONE, queue, task) for queue, task in pairs]
            assert [row.task for row in self.read(store, queue="mail")] == ["t", "u"]
            assert [row.queue for row in self.read(store, task="t")] == ["mail", "vip"]
            assert len(self.read(store, queue="vip", task="t")) == 1
            assert self.read(store, queue="vip", task="u") == []
            assert self.fold(store) == len(rows)

    def test_hours_are_the_sums_of_their_minutes(self, store: Store) -> None:
        """Also before anything is folded into hours."""
        at = store.now - store.now % HOUR
        self.append(store, at)
        self.append(store, at + 59 * MINUTE, TWO)
        self.append(store, at + HOUR, TWO)
        assert self.read(store, Period.HOUR) == [
            Rollup(at, "mail", "t", added(ONE, TWO)), Rollup(at + HOUR, "mail", "t", TWO),
        ]  # fmt: skip

    # -- fold --

    def test_fold_changes_no_sum(self, store: Store) -> None:
        """Whatever is folded and however often, readers see the same, by minute and by hour."""
        for ago in (30, 20, 20, 10):
            self.append(store, self.minute(store, ago * MINUTE))
            self.append(store, self.minute(store, ago * MINUTE), TWO, "vip", "u")
        before = self.read(store), self.read(store, Period.HOUR)
        assert self.fold(store, 3) == 3
        assert (self.read(store), self.read(store, Period.HOUR)) == before
        assert self.fold(store) == 5
        assert (self.read(store), self.read(store, Period.HOUR)) == before
        assert self.fold(store) == 0

    def test_minute_is_folded_once_it_has_been_over_for_a_while(self, store: Store) -> None:
        """Workers flush at the end of a minute; their rows should be there."""
        at = self.minute(store)
        self.append(store, at)
        store.pass_time(at + MINUTE + 15 * SECOND - 1 - store.now)
        assert self.fold(store) == 0
        store.pass_time(1)
        assert self.fold(store) == 1

    def test_row_that_comes_after_its_minute_was_folded_counts_in_it(self, store: Store) -> None:
        """A row that is appended late is added to its minute, also after that minute was folded."""
        at = self.minute(store, ago=10 * MINUTE)
        self.append(store, at)
        self.fold(store)
        self.append(store, at, TWO)
        assert self.read(store) == [Rollup(at, "mail", "t", added(ONE, TWO))]
        assert self.fold(store) == 1
        assert self.read(store) == [Rollup(at, "mail", "t", added(ONE, TWO))]

    def test_minutes_become_hours_after_a_day(self, store: Store) -> None:
        """A whole hour at once: then no minute of it is left, and its hour has all of them."""
        at = store.now - store.now % HOUR
        for minute in (0, 59):
            self.append(store, at + minute * MINUTE)
        store.pass_time(at + DAY + HOUR - 1 - store.now)
        assert self.fold(store) == 2
        assert len(self.read(store)) == 2
        store.pass_time(1)
        assert self.fold(store) == 2
        assert self.read(store) == []
        assert self.read(store, Period.HOUR) == [Rollup(at, "mail", "t", added(ONE, ONE))]

    def test_late_row_goes_to_its_hour(self, store: Store) -> None:
        """One whose minute is no longer kept is added to its hour."""
        at = self.minute(store, ago=3 * DAY)
        hour = at - at % HOUR
        for figures in (ONE, TWO):
            self.append(store, at, figures)
            assert self.fold(store) == 1
        assert self.read(store) == []
        assert self.read(store, Period.HOUR) == [Rollup(hour, "mail", "t", added(ONE, TWO))]

    def test_hours_are_deleted_after_thirty_days(self, store: Store) -> None:
        """And a row that is older is not kept at all."""
        hour = store.now - store.now % HOUR
        self.append(store, hour)
        store.pass_time(hour + 30 * DAY + HOUR - 1 - store.now)
        self.fold(store)
        assert len(self.read(store, Period.HOUR)) == 1
        store.pass_time(1)
        assert self.fold(store) == 1
        assert self.read(store, Period.HOUR) == []
        self.append(store, hour)
        assert self.fold(store) == 1
        assert self.read(store, Period.HOUR) == []

    def test_fold_does_no_more_than_its_limit(self, store: Store) -> None:
        """The oldest first, and the limit counts rows of every kind."""
        for ago in (40 * DAY, 35 * DAY, 3 * DAY, HOUR, 10 * MINUTE):
            self.append(store, self.minute(store, ago))
        assert [self.fold(store, 2) for _ in range(4)] == [2, 2, 1, 0]
        assert self.fold(store, 0) == 0

    def test_period_keeps_a_bounded_number_of_tasks(self, store: Store) -> None:
        """Further pairs of a queue and a task are added up under one name; nothing is lost from the sum."""
        at = self.minute(store, ago=10 * MINUTE)
        rows = [Rollup(at, "mail", f"t{number:03}", TWO) for number in range(PAIRS_MAX)]
        store.run(capabilities.Rollups.of(store.driver).append_rollups(rows))
        self.fold(store)
        self.append(store, at, TWO, task="one too many")
        self.append(store, at, TWO, queue="vip")
        self.append(store, at, TWO, task="t000")
        self.fold(store)
        found = self.read(store)
        assert len(found) == PAIRS_MAX + 1
        assert [row.figures.started for row in found if (row.queue, row.task) == (OTHER, OTHER)] == [2]
        assert [row.figures.started for row in found if row.task == "t000"] == [2]
        assert sum(row.figures.started for row in found) == PAIRS_MAX + 3

    def test_roll_ups_touch_no_job(self, store: Store) -> None:
        """No job depends on them, and no waiter wakes for them."""
        store.running()
        before = store.everything()
        self.append(store, self.minute(store, ago=10 * MINUTE))
        self.fold(store)
        assert store.everything() == before
