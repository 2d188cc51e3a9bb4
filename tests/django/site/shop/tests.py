"""Tests as a project has them: in a database of Django's own making, in memory where it is SQLite."""

from __future__ import annotations

from django.db import transaction
from django.test import TestCase

from shop.models import Order
from shop.tasks import add, ship


class Enqueueing(TestCase):
    def test_a_job_is_part_of_the_transaction_of_the_test(self) -> None:
        result = add.enqueue(1, b=2)
        result.refresh()
        self.assertEqual((result.status, result.args, result.kwargs), ("READY", [1], {"b": 2}))

    def test_a_rolled_back_savepoint_takes_its_job_along(self) -> None:
        from taskharbor.integrations.django.framework import TaskResultDoesNotExist

        with self.assertRaises(ZeroDivisionError), transaction.atomic():
            result = ship.enqueue(Order.objects.create(name="a").pk)
            raise ZeroDivisionError
        with self.assertRaises(TaskResultDoesNotExist):
            result.refresh()
