from __future__ import annotations

from django.http import HttpResponse
from django.urls import include, path

from taskharbor.integrations.django import dashboard_urls

urlpatterns = [
    path("staff/jobs/", include(dashboard_urls())),
    path("open/", include((dashboard_urls(authorize=lambda request: ("write", "anyone")), "open"))),
    path("accounts/login/", lambda request: HttpResponse("sign in")),
]
