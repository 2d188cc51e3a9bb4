"""Settings of the documentation site: `make docs` builds it from these pages into `build/docs`."""

from __future__ import annotations

import re
import shutil
import tomllib
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx

import taskharbor
from taskharbor.client import handle, harbor
from taskharbor.rules import retry

DOCS = Path(__file__).parent
PROJECT = tomllib.loads((DOCS.parent / "pyproject.toml").read_text())["project"]

project = "TaskHarbor"
author = PROJECT["authors"][0]["name"]
project_copyright = author
release = version = PROJECT["version"]

extensions = ["myst_parser", "sphinx.ext.autodoc"]
root_doc = "index"
suppress_warnings = [
    "misc.highlighting_failure",  # Pygments knows no $$ in SQL; the suite runs these blocks
    "ref.python",  # an annotation may name one of two classes: `Audit` of the client, and of drivers
]

# -- Markdown: what GitHub renders, and `{toctree}`

myst_heading_anchors = 4
myst_enable_extensions = ["attrs_block"]

# -- the Python reference, from docstrings that are written in Markdown

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True, "show-inheritance": True}
default_role = "code"
toc_object_entries_show_parents = "hide"
# Names that these modules import for type checkers only, and that autodoc has to resolve.
vars(handle).setdefault("Harbor", harbor.Harbor)
vars(retry).setdefault("Job", handle.Job)
# Names that taskharbor imports when they are first asked for; `Worker` has its place in python/workers.md.
vars(taskharbor).update({name: getattr(taskharbor, name) for name in taskharbor.__all__ if name != "Worker"})

# -- HTML: everything comes with the pages, nothing from another server

html_theme = "furo"
html_title = f"TaskHarbor {release}"
html_sourcelink_suffix = ""
html_show_sphinx = False

LLMS_SUMMARY = "Durable background jobs for Python, kept in SQLite or PostgreSQL, without a message broker."


def docstring_as_rst(
    app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]
) -> None:
    """Mark what is indented in a docstring as code: there Markdown needs no mark, and reStructuredText does."""
    if what == "module":
        del lines[1:]  # what follows the first line of a module's docstring is for readers of the code
    found: list[str] = []
    in_code = False
    for number, line in enumerate(lines):
        begins = line.startswith("    ") and (number == 0 or not lines[number - 1].strip())
        if begins and not in_code:
            found += ["::", ""]
            in_code = True
        elif line.strip() and not line.startswith("    "):
            in_code = False
        found.append(re.sub(r"(?<!`)`([^`]+)`(?!`)", r"``\1``", line))
    lines[:] = found


def drop_empty_globs(app: Sphinx, page: str, source: list[str]) -> None:
    """Leave out a pattern of the index that matches no page: Sphinx warns of it, and offers no way to allow it."""
    if page == root_doc:
        lines = source[0].splitlines()
        source[0] = "\n".join(
            line for line in lines if not re.fullmatch(r"[\w/]*\*", line) or any(DOCS.glob(f"{line}.md"))
        )


def copy_pictures(app: Sphinx, error: Exception | None) -> None:
    """Copy the pictures that pages name in HTML, which Sphinx does not read."""
    if error is None:
        shutil.copytree(DOCS / "images", Path(app.outdir) / "images", dirs_exist_ok=True)


def write_llms_txt(app: Sphinx, error: Exception | None) -> None:
    """List every page with its first sentence in `llms.txt`, linked as Markdown, for language models."""
    if error is not None:
        return
    lines = [f"# {project}", "", f"> {LLMS_SUMMARY}"]
    for toctree in app.env.get_doctree(root_doc).findall(lambda node: node.tagname == "toctree"):
        lines += ["", f"## {toctree['caption']}", ""]
        for _, page in toctree["entries"]:
            title = app.env.titles[page].astext()
            lines.append(f"- [{title}](_sources/{page}.md): {first_sentence(app.env.get_doctree(page))}")
    (Path(app.outdir) / "llms.txt").write_text("\n".join(lines) + "\n")


def first_sentence(page: nodes.document) -> str:
    """The first sentence of a page, on one line."""
    paragraph = next((p for p in page.findall(nodes.paragraph) if p.astext().strip()), None)
    text = " ".join(paragraph.astext().split()) if paragraph is not None else ""
    return re.split(r"(?<=[.:])\s", text, maxsplit=1)[0].rstrip(":")


def setup(app: Sphinx) -> None:
    app.connect("autodoc-process-docstring", docstring_as_rst)
    app.connect("source-read", drop_empty_globs)
    app.connect("build-finished", copy_pictures)
    app.connect("build-finished", write_llms_txt)
