"""Which requests come from pages of other origins: they get nothing. Pure.

A page on the web, or of another server on this machine's loopback, can make the browser ask us. It cannot
read the answers, but it can make us work, with the user's own password, and learn from sizes and times.
Browsers say who asks: https://w3c.github.io/webappsec-fetch-metadata/; the rule is the resource isolation
policy of https://web.dev/articles/fetch-metadata. They say it only to addresses that they trust (HTTPS and
loopback), so the cost of each request must be bounded all the same. Programs (Prometheus, curl) say nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

#: another port of the same host is "same-site", and another server
_OURS = ("same-origin", "none")


def cross_origin(path: str, headers: Mapping[str, str]) -> bool:
    """Tell whether a request is to be refused because a page of another origin makes it.

    Following a link to one of our pages is allowed; the API has no pages.

    Args:
        path: what is asked for.
        headers: names are in lower case.
    """
    site = headers.get("sec-fetch-site")
    if site is None:
        return _of_another_origin(headers)
    follows_link = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
    return site not in _OURS and not (follows_link and not path.startswith("/api/"))


def _of_another_origin(headers: Mapping[str, str]) -> bool:
    """Judge by Origin: older browsers send it with CORS requests, all of them with WebSockets."""
    origin = headers.get("origin")
    return origin is not None and origin.rpartition("//")[2].lower() != headers.get("host", "").lower()
