from __future__ import annotations

from django.db import models


class Order(models.Model):
    """What somebody bought."""

    customer = models.EmailField()
    amount = models.IntegerField()
    receipt = models.CharField(max_length=100, blank=True)
