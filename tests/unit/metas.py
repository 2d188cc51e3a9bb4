"""What a job's meta may be, and what is refused: one table for Python, SQL, REST and the command line."""

from __future__ import annotations

from typing import Any

TAKEN: list[dict[str, str]] = [
    {"tenant": "acme"},
    {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tracestate": "a=1,b=2"},
    {"a.b-c_D9": 'é 😀 "quoted" \\ /', "empty": "", "x": " spaces at its ends "},
    {"k" * 64: "v" * 512},
    {"wide": "é" * 512},
    {f"n{number}": "" for number in range(32)},
    {f"n{number}": "v" * 504 for number in range(7)} | {"last": "v" * (4096 - 1 - 7 * 512 - 10)},
    {"quotes": '"' * 512, "backslashes": "\\" * 512, "more": "é" * 512, "last": "é" * 487},
]

REFUSED: list[tuple[str, Any]] = [
    ("meta must be a map", "tenant=acme"),
    ("meta must be a map", ["tenant"]),
    ("meta must be a map", 5),
    ("at most 32 entries, not 33", {f"n{number}": "" for number in range(33)}),
    ("a name in meta has 1 to 64", {"": "x"}),
    ("a name in meta has 1 to 64", {"k" * 65: "x"}),
    ("a name in meta has 1 to 64", {"a b": "x"}),
    ("a name in meta has 1 to 64", {"é": "x"}),
    ("a name in meta has 1 to 64", {"a\n": "x"}),
    ("a name in meta has 1 to 64", {"a:b": "x"}),
    ("meta.'n'. must be text, not 5", {"n": 5}),
    ("meta.'n'. must be text", {"n": None}),
    ("meta.'n'. must be text", {"n": True}),
    ("meta.'n'. must be text", {"n": {"a": "b"}}),
    ("meta.'n'. takes at most 512 characters, not 513", {"n": "v" * 513}),
    ("meta.'n'. has a control character", {"n": "a\nb"}),
    ("meta.'n'. has a control character", {"n": "a\u0085b"}),
    ("meta takes at most 4096 bytes as JSON, not 4097",
     {f"n{number}": "v" * 504 for number in range(7)} | {"last": "v" * (4097 - 1 - 7 * 512 - 10)}),
    ("meta takes at most 4096 bytes as JSON",
     {"quotes": '"' * 512, "backslashes": "\\" * 512, "more": "é" * 512, "last": "é" * 487 + "v"}),
]  # fmt: skip
