"""JSON text and values: what a payload or a result may hold, how large it may be, what a name may look like.

Payloads and results are stored as JSON text, in UTF-8 and without escapes where none are needed: readable in
a dashboard, writable from any language. Nothing is ever pickled.

A **payload** must come back as it was given: a value that JSON would silently change (NaN, a tuple, a
datetime where no annotation says so, an integer as the key of an object) is refused when it is enqueued, not
discovered in a worker. Integers of up to 4,300 digits come back exactly. A **result** is more tolerant,
because the work is done when it is encoded: dataclasses, structs, models, datetimes, tuples and sets are
written as JSON, and read back as plain JSON values.

Neither may hold NaN or an infinity, a NUL or a lone surrogate in a text (no store can be trusted with them),
two keys that are one in JSON (1 and "1"), nor be nested deeper than `NESTING_LIMIT`.
"""

from __future__ import annotations

from taskharbor.codec.changes import ensure_unchanged
from taskharbor.codec.models import decode_hook, encode_hook, is_model
from taskharbor.codec.problems import NESTING_LIMIT, problem_in, reason_of
from taskharbor.codec.text import (
    KEY_LIMIT,
    NAME_LIMIT,
    agreeing,
    checked_name,
    clean_text,
    counted,
    shorten,
)
from taskharbor.codec.values import (
    ENCODED,
    PAYLOAD_LIMIT,
    RESULT_LIMIT,
    SEALED_PREFIX,
    decode_payload,
    decode_result,
    encode_payload,
    encode_result,
    result_decoder,
    to_json,
)

__all__ = [
    "ensure_unchanged",
    "decode_hook",
    "encode_hook",
    "is_model",
    "NESTING_LIMIT",
    "problem_in",
    "reason_of",
    "KEY_LIMIT",
    "NAME_LIMIT",
    "agreeing",
    "checked_name",
    "clean_text",
    "counted",
    "shorten",
    "ENCODED",
    "PAYLOAD_LIMIT",
    "RESULT_LIMIT",
    "SEALED_PREFIX",
    "decode_payload",
    "decode_result",
    "encode_payload",
    "encode_result",
    "result_decoder",
    "to_json",
]
