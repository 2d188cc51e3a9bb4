"""`manage.py visit`: what a few visitors do, and what became of it."""

from __future__ import annotations

from typing import Any

from django.core.management import call_command
from django.core.management.base import BaseCommand
from django.test import Client

from shop.models import Order
from shop.tasks import ask_the_bank
from taskharbor import Worker
from taskharbor.integrations.django import get_harbor


class Command(BaseCommand):
    help = "Buy something, fail to buy something, and let a worker do what there is to do."

    def handle(self, *args: Any, **options: Any) -> None:
        call_command("check", verbosity=0)
        client, before = Client(), Order.objects.count()
        refused = client.post("/orders/", {"customer": "eve@example.org", "amount": 7, "card": "expired"})
        assert refused.status_code == 402
        assert Order.objects.count() == before  # the order was rolled back, and its tasks with it
        assert not Order.objects.filter(customer="eve@example.org").exists()
        placed = client.post("/orders/", {"customer": "ana@example.org", "amount": 42}).json()
        self.stdout.write(
            f"placed order {placed['order']}; receipt: {self._receipt(client, placed)['status']}"
        )

        # In production this is `manage.py harbor worker`, in processes of its own.
        while not ask_the_bank.get_result(placed["bank"]).is_finished:
            with get_harbor() as harbor:
                assert sum(harbor.jobs.counts().values()) == 2 * (Order.objects.count())
                Worker(harbor, concurrency=10).drain_sync()
        receipt = self._receipt(client, placed)
        assert receipt == {"status": "SUCCESSFUL", "receipt": "receipt for ana@example.org: 42"}
        bank = ask_the_bank.get_result(placed["bank"])
        assert (bank.attempts, bank.errors[0].exception_class) == (2, ConnectionError)
        self.stdout.write(f"{receipt['receipt']}; the bank answered at attempt {bank.attempts}")

    def _receipt(self, client: Client, placed: dict[str, Any]) -> dict[str, Any]:
        return client.get(f"/receipts/{placed['receipt']}/").json()
