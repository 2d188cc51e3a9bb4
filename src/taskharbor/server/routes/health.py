"""`/healthz` and `/readyz`, at the root and without a token: does the server run, and can it do its work?"""

from __future__ import annotations

import asyncio

from taskharbor.errors import SchemaError, StoreError
from taskharbor.server.errors import ApiError, logger
from taskharbor.server.operation import Call, Routes
from taskharbor.views.documents import Health, Ready

routes = Routes("health")

READY_SECONDS_MAX = 5.0
NO_JOB = "00000000-0000-0000-0000-000000000000"


@routes.on("GET", "/healthz", None)
async def healthz(call: Call) -> Health:
    """Respond as long as the server runs, even if the store is unavailable."""
    return Health("ok")


@routes.on("GET", "/readyz", None)
async def readyz(call: Call) -> Ready:
    """Check that the store can be reached and that its schema fits this version."""
    driver = call.harbor.driver
    try:
        async with asyncio.timeout(READY_SECONDS_MAX):
            await driver.open()
            await driver.get([NO_JOB])  # a read of the tables: the clock alone does not show that they exist
    except TimeoutError:
        raise _not_ready(f"the store did not answer within {READY_SECONDS_MAX:g} s") from None
    except SchemaError as error:
        logger.warning("not ready: %s", error)
        raise _not_ready("the store's schema is not the one that this version works with") from None
    except StoreError as error:
        logger.warning("not ready: %s", error)
        raise _not_ready("the store cannot be reached") from None
    return Ready("ready")


def _not_ready(message: str) -> ApiError:
    return ApiError(503, "not_ready", message, headers={"Retry-After": "5"})
