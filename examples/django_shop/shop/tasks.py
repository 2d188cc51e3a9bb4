"""What the shop does after it has answered. `manage.py harbor worker` runs these."""

from __future__ import annotations

from typing import Any

from shop.models import Order

try:
    from django.tasks import task
except ImportError:  # Django 5.2
    from django_tasks import task


@task(queue_name="mail", priority=10)
def send_receipt(order: int) -> str:
    """Write the receipt of an order. It may run twice if a worker is killed, so that does no harm."""
    placed = Order.objects.get(pk=order)
    placed.receipt = f"receipt for {placed.customer}: {placed.amount}"
    placed.save(update_fields=["receipt"])
    return placed.receipt


@task(takes_context=True)
def ask_the_bank(context: Any, order: int) -> int:
    """Fail once, as banks do. The next attempt succeeds."""
    if context.attempt == 1:
        raise ConnectionError("the bank does not answer")
    return context.attempt
