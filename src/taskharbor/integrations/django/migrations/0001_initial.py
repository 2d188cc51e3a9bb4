from __future__ import annotations

from typing import ClassVar

from django.db import migrations

from taskharbor.integrations.django.schema import UpgradeSchema


class Migration(migrations.Migration):  # type: ignore[misc]
    initial = True
    dependencies: ClassVar[list[tuple[str, str]]] = []
    operations: ClassVar = [UpgradeSchema(postgresql=16, sqlite=16)]
