"""The documentation as one page of HTML, without scripts and without anything from other sites."""

from __future__ import annotations

import base64
import hashlib
import json
from html import escape
from typing import Any

_STYLE = """
:root { color-scheme: light dark; font-family: system-ui, sans-serif; line-height: 1.5 }
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
h2 { margin-top: 2.5rem; text-transform: capitalize }
details { border: 1px solid #8885; border-radius: .4rem; margin: .4rem 0; padding: .3rem .8rem }
summary { cursor: pointer }
code, pre { font-family: ui-monospace, monospace; font-size: .9em }
pre { overflow-x: auto; background: #8882; padding: .6rem; border-radius: .4rem }
.method { display: inline-block; min-width: 4.5rem; font-weight: bold }
table { border-collapse: collapse } td, th { text-align: left; padding: .15rem 1rem .15rem 0; vertical-align: top }
"""
_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
POLICY = f"default-src 'none'; style-src 'sha256-{_HASH}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"


def page(document: dict[str, Any]) -> str:
    """Render an OpenAPI document as HTML."""
    by_tag: dict[str, list[str]] = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            by_tag.setdefault(operation["tags"][0], []).append(_operation(path, method, operation))
    info = document["info"]
    sections = "".join(f"<h2>{escape(tag)}</h2>{''.join(parts)}" for tag, parts in by_tag.items())
    schemas = "".join(
        f'<details id="{escape(name)}"><summary><code>{escape(name)}</code></summary>{_json(schema)}</details>'
        for name, schema in document["components"]["schemas"].items()
    )
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(info["title"])}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style>'
        f"<h1>{escape(info['title'])} {escape(info['version'])}</h1><p>{escape(info['description'])}</p>"
        f'<p>The same for programs: <a href="openapi.json">openapi.json</a></p>{sections}'
        f"<h2>documents</h2>{schemas}</html>"
    )


def _operation(path: str, method: str, operation: dict[str, Any]) -> str:
    parameters = "".join(
        f"<tr><td><code>{escape(each['name'])}</code></td><td>{escape(each['in'])}</td>"
        f"<td><code>{escape(json.dumps(each['schema']))}</code></td></tr>"
        for each in operation["parameters"]
    )
    body = ""
    if "requestBody" in operation:
        content = operation["requestBody"]["content"]["application/json"]
        examples = [each["value"] for each in content.get("examples", {}).values()]
        body = f"<h4>Body</h4>{_refs(content['schema'])}{''.join(map(_json, examples))}"
    answers = "".join(
        f"<tr><td>{escape(status)}</td><td>{escape(answer['description'])}</td>"
        f"<td>{''.join(_refs(kind['schema']) for kind in answer.get('content', {}).values())}</td></tr>"
        for status, answer in operation["responses"].items()
    )
    return (
        f'<details><summary><span class="method">{method.upper()}</span> <code>{escape(path)}</code> '
        f"{escape(operation['summary'])}</summary><p>{escape(operation.get('description', ''))}</p>"
        f"{f'<h4>Parameters</h4><table>{parameters}</table>' if parameters else ''}{body}"
        f"<h4>Responses</h4><table>{answers}</table></details>"
    )


def _refs(schema: dict[str, Any]) -> str:
    names = [each["$ref"].rpartition("/")[2] for each in schema.get("oneOf", [schema]) if "$ref" in each]
    return " or ".join(f'<a href="#{escape(name)}"><code>{escape(name)}</code></a>' for name in names)


def _json(value: Any) -> str:
    return f"<pre>{escape(json.dumps(value, indent=2))}</pre>"
