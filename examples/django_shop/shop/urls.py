from __future__ import annotations

from django.contrib import admin
from django.urls import include, path

from shop import views
from taskharbor.integrations.django import dashboard_urls

urlpatterns = [
    path("orders/", views.place_order),
    path("receipts/<str:result>/", views.show_receipt),
    path("staff/jobs/", include(dashboard_urls())),
    path("admin/", admin.site.urls),
]
