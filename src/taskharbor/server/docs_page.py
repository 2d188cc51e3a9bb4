"""What the page of documentation shows: each operation of the OpenAPI document, with a line for curl."""

from __future__ import annotations

import json
import shlex
from typing import Any

from msgspec import Struct


class ShownOperation(Struct, frozen=True):
    """One operation, as the page lists it."""

    id: str
    method: str
    path: str
    summary: str
    description: str
    parameters: list[tuple[str, str, str]]  # name, where, schema
    body: list[str]  # the names of the documents that it takes
    examples: list[str]
    responses: list[tuple[str, str, list[str]]]  # status, phrase, documents
    curl: str


def shown_operations(document: dict[str, Any], base: str) -> dict[str, list[ShownOperation]]:
    """Return the operations of a document by their tag. `base` is where the server is."""
    by_tag: dict[str, list[ShownOperation]] = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            shown = _shown(path, method.upper(), operation, base)
            by_tag.setdefault(operation["tags"][0], []).append(shown)
    return by_tag


def shown_documents(document: dict[str, Any]) -> dict[str, str]:
    """Return the schema of each document as text."""
    return {name: _json(schema) for name, schema in document["components"]["schemas"].items()}


def _shown(path: str, method: str, operation: dict[str, Any], base: str) -> ShownOperation:
    content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    examples = [each["value"] for each in content.get("examples", {}).values()]
    return ShownOperation(
        operation["operationId"],
        method,
        path,
        operation["summary"],
        operation.get("description", ""),
        [(each["name"], each["in"], json.dumps(each["schema"])) for each in operation["parameters"]],
        _names(content.get("schema", {})),
        [_json(example) for example in examples],
        [
            (
                status,
                answer["description"],
                [name for kind in answer.get("content", {}).values() for name in _names(kind["schema"])],
            )
            for status, answer in operation["responses"].items()
        ],
        _curl(path, method, operation, base, examples),
    )


def _curl(path: str, method: str, operation: dict[str, Any], base: str, examples: list[Any]) -> str:
    """Write the line that calls an operation; its variable $TOKEN is the caller's."""
    words = ["curl"]
    if method != "GET":
        words += ["-X", method]
    if operation["security"]:
        words.append('-H "Authorization: Bearer $TOKEN"')
    if examples:
        words += ["-H 'Content-Type: application/json'", "-d", shlex.quote(json.dumps(examples[0]))]
    named = "/".join(part.strip("{}").upper() if part.startswith("{") else part for part in path.split("/"))
    return " ".join([*words, shlex.quote(base + named)])


def _names(schema: dict[str, Any]) -> list[str]:
    return [each["$ref"].rpartition("/")[2] for each in schema.get("oneOf", [schema]) if "$ref" in each]


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)
