from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True
    dependencies = []
    operations = [
        migrations.CreateModel(
            "Order",
            [
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("customer", models.EmailField(max_length=254)),
                ("amount", models.IntegerField()),
                ("receipt", models.CharField(blank=True, max_length=100)),
            ],
        )
    ]
