from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand
from django.db import transaction

from shop.models import Order
from shop.tasks import ship


class Command(BaseCommand):
    help = "Place orders, each with its task in one transaction; every tenth of them is rolled back."

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument("orders", type=int)

    def handle(self, *args: Any, orders: int, **options: Any) -> None:
        for number in range(orders):
            self._place(f"order {number}", gives_up=False)
            if number % 10 == 0:
                self._place(f"never placed {number}", gives_up=True)

    def _place(self, name: str, gives_up: bool) -> None:
        try:
            with transaction.atomic():
                ship.enqueue(Order.objects.create(name=name).pk)
                if gives_up:
                    raise InterruptedError
        except InterruptedError:
            pass
