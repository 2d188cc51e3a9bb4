"""A shop on Django, whose tasks are TaskHarbor's.

pip install 'taskharbor[django,server]'     (with Django 5.2: django-tasks as well)
python manage.py migrate
python manage.py visit                      what a few visitors do, and what became of it
python manage.py runserver                  the shop; the dashboard for staff is at /staff/jobs/
python manage.py harbor worker              in another terminal
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")
    from django.core.management import execute_from_command_line

    execute_from_command_line(sys.argv)
