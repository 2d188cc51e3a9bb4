"""How a command line names the store of a harbor: what a line that is offered for copying ends with.

Without it, a pasted line would act on another store, such as ./taskharbor.db.
"""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from taskharbor.client.harbor import Harbor


def store_words(harbor: Harbor) -> str:
    """Return ` -A app:harbor` or ` --url …`, with a blank before it; nothing where no option is needed or would help.

    The command line that opened the harbor says it. Else it is the URL; only a driver knows that of a store that was
    given as one, and what is in memory no other process can reach.
    """
    if harbor.command_words is not None:
        return harbor.command_words
    return _url_words(harbor)


def words_for_others(harbor: Harbor, app: str | None) -> str:
    """Return them for readers who do not share the environment of this process: those of a server's pages."""
    if app is None:
        return _url_words(harbor)
    # An application that leaves its URL to the environment names another store in another shell.
    return f" -A {quote(app)}" + ("" if harbor.declares_url else _url_words(harbor))


def _url_words(harbor: Harbor) -> str:
    """Return the option with the URL, as any folder of this machine understands it, and without a password."""
    scheme = harbor.url.partition("://")[0].lower()
    if not harbor.has_url or scheme == "memory":
        return ""
    return f" --url {quote(shown_url(harbor))}"


def shown_url(harbor: Harbor) -> str:
    from taskharbor.telemetry.logs import masked_url

    url = harbor.url
    scheme, _, rest = url.partition("://")
    if scheme.lower() == "sqlite" and not rest.startswith("//"):  # relative to the folder of this process
        from urllib.parse import quote as percent_encoded

        path, question, query = rest.partition("?")
        whole = percent_encoded(
            getattr(harbor.driver, "path", path.removeprefix("/")), errors="surrogateescape"
        )
        url = f"sqlite:///{whole}{question}{query}"
    return masked_url(url)
