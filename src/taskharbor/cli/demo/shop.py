"""A shop's background work, for `taskharbor demo --serve`: an hour of it in a few seconds, and then as it comes."""

from __future__ import annotations

import asyncio
import random
from datetime import UTC, datetime, timedelta
from typing import Any

from taskharbor import Harbor, RetryPolicy, chain, group
from taskharbor.clock import ManualClock, from_micros
from taskharbor.drivers.sqlite import SQLiteDriver
from taskharbor.worker.worker import Worker

MINUTES = 60
ORDERS_A_MINUTE = 14
PATIENT = RetryPolicy(max_attempts=3, initial=5, maximum=60, multiplier=3, jitter=0.2)


class Shop:
    """The tasks of the shop. Their handlers take time by the clock that is given, or by waiting."""

    def __init__(self, harbor: Harbor, clock: ManualClock | None = None, seed: int = 7) -> None:
        self.harbor = harbor
        self._clock = clock
        self._chance = random.Random(seed)
        self.taking_orders: asyncio.Task[None] | None = None
        task = harbor.task
        self.charge = task(name="card:charge", queue="payments", retry=PATIENT, priority=5)(self._charge)
        self.mail = task(name="email:send", queue="mail", retry=PATIENT)(self._mail)
        self.resize = task(name="photo:resize", queue="media")(self._resize)
        self.build = task(name="report:build", queue="reports", retry=PATIENT)(self._build)

    async def _take(self, typical: float) -> None:
        """Let some time pass: mostly as long as is typical, now and then much longer."""
        seconds = typical * self._chance.lognormvariate(0, 0.5)
        if self._clock is None:
            await asyncio.sleep(seconds)
        else:
            self._clock.advance(seconds)

    async def _charge(self, order: int, amount: float) -> dict[str, object]:
        """Charge a card. Some banks are slow, and some cards are refused."""
        await self._take(0.3)
        if order % 41 == 7:
            raise TimeoutError(f"timeout: bank-{order % 5}.example does not answer")
        if order % 97 == 13:
            raise PermissionError(f"card of order {order} is refused: insufficient funds")
        return {"order": order, "charged": amount}

    async def _mail(self, to: str, order: int) -> None:
        """Send a confirmation."""
        await self._take(0.1)
        if order % 29 == 3:
            raise ConnectionError(f"connection to mx{order % 3}.example refused")

    async def _resize(self, photo: str) -> str:
        """Resize a photo."""
        await self._take(0.2)
        return f"{photo}.webp"

    async def _build(self, day: str) -> dict[str, str]:
        """Build the report of a day."""
        await self._take(2)
        return {"report": day}

    async def orders(self, first: int, count: int) -> None:
        """Enqueue what a few orders bring with them."""
        calls: list[Any] = []
        for order in range(first, first + count):
            amount = round(self._chance.uniform(5, 250), 2)
            correlation = f"order-{order}"
            calls.append(self.charge.using(correlation_id=correlation).s(order=order, amount=amount))
            mail = self.mail.using(correlation_id=correlation, tags=["confirmation"])
            calls.append(mail.s(to=f"customer{order}@example.com", order=order))
        await self.harbor.aenqueue_many(calls)

    async def album(self, name: str) -> None:
        """Enqueue a workflow: photos one beside the other, then the report."""
        photos = group(self.resize.si(photo=f"{name}-{n:02}.jpg") for n in range(12))
        await chain(self.resize.si(photo=f"{name}.zip"), photos, self.build.si(day=name)).aenqueue()

    async def keep_busy(self) -> None:
        """Let orders come in without end."""
        order = 10_000
        while True:
            await self.orders(order, 2)
            order += 2
            await asyncio.sleep(self._chance.uniform(2, 6))


async def fill(path: str) -> None:
    """Let an hour of the shop's work happen in a store, by a clock that begins an hour ago."""
    began = datetime.now(UTC) - timedelta(minutes=MINUTES)
    clock = ManualClock(began)
    async with Harbor(
        driver=SQLiteDriver(path, synchronous="NORMAL", clock=clock), version="2.3.0"
    ) as harbor:
        await harbor.amigrate()
        shop = Shop(harbor, clock)
        day = {"day": "today"}
        await harbor.schedules.aadd(
            "report of the day", "report:build", day, schedule="*/10 * * * *", queue="reports"
        )
        for minute in range(MINUTES):
            await shop.orders(minute * ORDERS_A_MINUTE, ORDERS_A_MINUTE)
            if minute % 20 == 5:
                await shop.album(f"album-{minute}")
            await Worker(harbor, concurrency=1, log_tracebacks=False).drain()
            now = from_micros(await harbor.driver.now())
            clock.advance(max(0.0, (began + timedelta(minutes=minute + 1) - now).total_seconds()))
        with harbor.acting_as("ada"):
            await harbor.queues.apause("media")
        await shop.album("album-now")


harbor = Harbor(version="2.3.1")
shop = Shop(harbor)


@harbor.on_worker_start
async def _open() -> None:
    """Begin to take orders when a worker starts."""
    shop.taking_orders = asyncio.get_running_loop().create_task(shop.keep_busy())


@harbor.on_worker_stop
async def _close() -> None:
    if shop.taking_orders is not None:
        shop.taking_orders.cancel()
