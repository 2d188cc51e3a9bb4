"""The project of `benchmarks.django_backends`: settings and tasks in one module; the environment says which backend."""

from __future__ import annotations

import json
import os

SECRET_KEY = "of the benchmark"
DEBUG = False
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = [os.environ["DRAINED_APP"]]
# Connections that last, which all three are fastest with.
DATABASES = {"default": {**json.loads(os.environ["DRAINED_DATABASE"]), "CONN_MAX_AGE": None}}
TASKS = {
    "default": {
        "BACKEND": os.environ["DRAINED_BACKEND"],
        "OPTIONS": json.loads(os.environ["DRAINED_OPTIONS"]),
    }
}
LOGGING_CONFIG = None  # no log line costs anything
