"""An order in steps: no attempt repeats a stored step, and between two steps the handler sleeps without a slot."""

from __future__ import annotations

from dataclasses import dataclass
from tempfile import TemporaryDirectory

from taskharbor import Context, Harbor, RetryPolicy, Worker
from taskharbor.clock import ManualClock

done: list[str] = []


@dataclass
class Receipt:
    number: int
    amount: int


async def charge(amount: int) -> Receipt:
    done.append(f"charged {amount}")
    return Receipt(len(done), amount)


def ship(order: str) -> str:
    done.append(f"shipped {order}")
    if done.count(f"shipped {order}") == 1:
        raise ConnectionError("the carrier did not answer")
    return f"parcel of {order}"


async def ask_for_a_review(parcel: str) -> None:
    done.append(f"asked about the {parcel}")


def main(harbor: Harbor, clock: ManualClock) -> None:
    @harbor.task
    async def handle_order(ctx: Context, order: str, amount: int) -> int:
        receipt = await ctx.step("charge", charge, amount)  # stored once, later only read: a Receipt
        parcel = await ctx.step("ship", ship, order)
        await ctx.sleep("a-week", 7 * 86_400)  # gives up the slot; begins again here in a week
        await ctx.step("review", ask_for_a_review, parcel)
        return receipt.number

    job = handle_order.enqueue("A-1", amount=40)
    for _ in range(3):
        Worker(harbor, retry=RetryPolicy(max_attempts=3, initial=1, jitter=None)).drain_sync()
        clock.advance(7 * 86_400)  # a test's week takes no time

    print(done)
    assert done == ["charged 40", "shipped A-1", "shipped A-1", "asked about the parcel of A-1"]
    assert [str(attempt.status) for attempt in job.history()] == ["succeeded", "slept", "failed"]
    assert [step.name for step in harbor.jobs.steps(job.id)] == ["charge", "a-week", "ship", "review"]


if __name__ == "__main__":
    time = ManualClock()
    with TemporaryDirectory() as folder, Harbor(f"sqlite:///{folder}/harbor.db", clock=time) as store:
        main(store, time)
