from __future__ import annotations

from django.db import models


class Order(models.Model):
    """What the project is about."""

    name = models.CharField(max_length=100)
    sent = models.IntegerField(default=0)
