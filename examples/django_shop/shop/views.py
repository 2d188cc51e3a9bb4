from __future__ import annotations

from django.db import transaction
from django.http import HttpRequest, JsonResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from shop.models import Order
from shop.tasks import ask_the_bank, send_receipt


class CardRefused(Exception):
    """The customer cannot pay, and so buys nothing."""


@csrf_exempt  # for the sake of a short example
@require_POST
def place_order(request: HttpRequest) -> JsonResponse:
    """Place an order. Its tasks are part of the transaction: no order, no receipt."""
    try:
        with transaction.atomic():
            order = Order.objects.create(customer=request.POST["customer"], amount=request.POST["amount"])
            receipt = send_receipt.enqueue(order.pk)
            bank = ask_the_bank.enqueue(order.pk)
            if request.POST.get("card") == "expired":
                raise CardRefused
    except CardRefused:
        return JsonResponse({"error": "the card was refused"}, status=402)
    return JsonResponse({"order": order.pk, "receipt": receipt.id, "bank": bank.id}, status=201)


def show_receipt(request: HttpRequest, result: str) -> JsonResponse:
    """Show what became of a task."""
    found = send_receipt.get_result(result)
    value = found.return_value if found.status == "SUCCESSFUL" else None
    return JsonResponse({"status": found.status, "receipt": value})
