"""The OpenAPI document, made from the operations and the types that they read and return."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

import msgspec

from taskharbor.server.operation import Operation
from taskharbor.views.documents import ErrorDocument

_REF = "#/components/schemas/{name}"
_DESCRIPTION = (
    "Durable background jobs over HTTP. Every error has the same shape. A request that does not match this document "
    "gets 400. A request that matches it, but cannot be done (with an invalid cron expression, for example), gets 422."
)


def openapi(operations: list[tuple[str, Operation]], version: str, *, servers: str = "/") -> dict[str, Any]:
    """Build the document of these pairs of a prefix and an operation."""
    types = _types([operation for _, operation in operations])
    schemas, components = msgspec.json.schema_components(types, ref_template=_REF)
    named = dict(zip(types, schemas, strict=True))
    paths: dict[str, Any] = {}
    for prefix, operation in operations:
        path = paths.setdefault(prefix + operation.shown_path, {})
        path[operation.method.lower()] = _described(operation, named, components)
    return {
        "openapi": "3.1.0",
        "info": {"title": "TaskHarbor", "version": version, "description": _DESCRIPTION},
        "servers": [{"url": servers}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _types(operations: list[Operation]) -> list[Any]:
    found: dict[Any, None] = {ErrorDocument: None}
    for operation in operations:
        found.update(dict.fromkeys(operation.body))
        found.update(dict.fromkeys((operation.document, operation.query, operation.event)))
    found.pop(None, None)
    return list(found)


def _described(operation: Operation, named: dict[Any, Any], components: dict[str, Any]) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": operation.id,
        "summary": operation.summary,
        "tags": [operation.tag],
        "parameters": [*_path_parameters(operation), *_query_parameters(operation, components)],
        "responses": _responses(operation, named),
    }
    if operation.role is not None:
        described["description"] = f"Needs the role `{operation.role}`."
        described["security"] = [{"token": []}]
    else:
        described["security"] = []
    if operation.event is not None:
        described["description"] += (
            f" The data of an event about a job is of the type `{operation.event.__name__}`."
        )
    if operation.body:
        described["requestBody"] = _body(operation, named)
    return described


def _path_parameters(operation: Operation) -> list[dict[str, Any]]:
    parameters = []
    for part in operation.shown_path.split("/"):
        if part.startswith("{"):
            name = part.strip("{}")
            schema = (
                {"type": "string", "format": "uuid"}
                if name == "id"
                else {"type": "string", "minLength": 1, "maxLength": 255}
            )
            parameters.append({"name": name, "in": "path", "required": True, "schema": schema})
    return parameters


def _query_parameters(operation: Operation, components: dict[str, Any]) -> list[dict[str, Any]]:
    if operation.query is None:
        return []
    schema = components[operation.query.__name__]
    parameters = []
    for name, field in schema["properties"].items():
        described = _without_null(field)
        parameter = {"name": name, "in": "query", "required": False, "schema": described}
        if "description" in described:
            parameter["description"] = described["description"]
        parameters.append(parameter)
    return parameters


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """Remove null from a schema: a query leaves the parameter out instead."""
    choices = [each for each in schema.get("anyOf", ()) if each.get("type") != "null"]
    rest = {key: value for key, value in schema.items() if key not in ("anyOf", "default")}
    if "anyOf" not in schema:
        return schema
    return {**rest, **choices[0]} if len(choices) == 1 else {**rest, "anyOf": choices}


def _body(operation: Operation, named: dict[Any, Any]) -> dict[str, Any]:
    schemas = [named[kind] for kind in operation.body]
    content: dict[str, Any] = {"schema": schemas[0] if len(schemas) == 1 else {"oneOf": schemas}}
    if operation.examples:
        content["examples"] = {name: {"value": value} for name, value in operation.examples.items()}
    return {"required": operation.body_required, "content": {"application/json": content}}


def _responses(operation: Operation, named: dict[Any, Any]) -> dict[str, Any]:
    responses: dict[str, Any] = {}
    for status in operation.statuses:
        responses[str(status)] = {"description": HTTPStatus(status).phrase}
        if operation.document is not None:
            responses[str(status)]["content"] = {operation.media_type: {"schema": named[operation.document]}}
    errors = {400, 500, 501, 503, *operation.errors}
    if operation.role is not None:
        errors |= {401, 403, 429}
    if operation.method in ("POST", "PATCH", "DELETE"):
        errors |= {408, 413, 415}
    for status in sorted(errors):
        responses[str(status)] = {
            "description": HTTPStatus(status).phrase,
            "content": {"application/json": {"schema": named[ErrorDocument]}},
        }
    return responses
