"""The settings. What matters here: INSTALLED_APPS, DATABASES and TASKS."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from urllib.parse import urlsplit

SECRET_KEY = "for trying it out only"
DEBUG = True
ALLOWED_HOSTS = ["*"]
ROOT_URLCONF = "shop.urls"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
LOGIN_URL = "/admin/login/"
ASGI_APPLICATION = "shop.asgi.application"

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "taskharbor.integrations.django",  # the tables and `manage.py harbor`
    "shop",
]
if importlib.util.find_spec("django.tasks") is None:  # Django 5.2
    INSTALLED_APPS.append("django_tasks")
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]

TASKS = {
    "default": {
        "BACKEND": "taskharbor.integrations.django.Backend",
        "QUEUES": ["default", "mail"],
        "OPTIONS": {"max_attempts": 5, "timeout": 60},  # for tasks that say nothing else
    }
}

# SQLite, or the PostgreSQL that $DATABASE_URL names.
if "DATABASE_URL" in os.environ:
    url = urlsplit(os.environ["DATABASE_URL"])
    DATABASES = {
        "default": {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": url.path.removeprefix("/"),
            "USER": url.username,
            "PASSWORD": url.password,
            "HOST": url.hostname,
            "PORT": url.port,
        }
    }
else:
    DATABASES = {
        "default": {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": os.environ.get("SHOP_FILE", Path(__file__).parents[1] / "shop.sqlite3"),
            "OPTIONS": {"transaction_mode": "IMMEDIATE"},
        }
    }
