"""The settings of the tests' project. What differs from test to test comes from the environment, as JSON."""

from __future__ import annotations

import importlib.util
import json
import os

from taskharbor import RetryPolicy

SECRET_KEY = "of the tests"
DEBUG = os.environ.get("SHOP_DEBUG", "1") == "1"
ALLOWED_HOSTS = ["*"]
USE_TZ = os.environ.get("SHOP_USE_TZ", "1") == "1"
TIME_ZONE = "Asia/Tokyo"
ROOT_URLCONF = "shop.urls"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "taskharbor.integrations.django",
    "shop",
]
if importlib.util.find_spec("django.tasks") is None:
    INSTALLED_APPS.append("django_tasks")
INSTALLED_APPS = [name for name in INSTALLED_APPS if name != os.environ.get("SHOP_WITHOUT")]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
]
DATABASES = {"default": json.loads(os.environ["SHOP_DATABASE"])}
TASKS = {
    "default": {"BACKEND": "taskharbor.integrations.django.Backend", "QUEUES": ["default", "mail"]},
    "quick": {
        "BACKEND": "taskharbor.integrations.django.Backend",
        "OPTIONS": {"max_attempts": 3, "retry": RetryPolicy(initial=0, jitter=None)},
    },
    **json.loads(os.environ.get("SHOP_TASKS", "{}")),
}
