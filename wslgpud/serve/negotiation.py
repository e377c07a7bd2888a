"""The formats of metrics that a request can ask for, and the one that it prefers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import NamedTuple


class Format(NamedTuple):
    """A text format and the media type that announces it."""

    content_type: str
    openmetrics: bool = False


# https://prometheus.io/docs/instrumenting/content_negotiation/
CLASSIC = Format("text/plain; version=0.0.4; charset=utf-8")
CLASSIC_1 = Format("text/plain; version=1.0.0; escaping=underscores; charset=utf-8")
OPENMETRICS = Format("application/openmetrics-text; version=1.0.0; charset=utf-8", openmetrics=True)

_BY_MEDIA_TYPE = {
    ("application/openmetrics-text", "1.0.0"): OPENMETRICS,
    ("application/openmetrics-text", ""): OPENMETRICS,
    ("text/plain", "1.0.0"): CLASSIC_1,
    ("text/plain", "0.0.4"): CLASSIC,
    ("text/plain", ""): CLASSIC,
}


def negotiate(accept: str) -> Format:
    """Return the format that an Accept header prefers; the classic one when it accepts none of ours."""
    liked = [
        (weight, _BY_MEDIA_TYPE[media]) for media, weight in _weighed(accept) if weight and media in _BY_MEDIA_TYPE
    ]
    return max(liked, key=lambda one: one[0])[1] if liked else CLASSIC


def accepts_gzip(accept_encoding: str) -> bool:
    """Tell whether an Accept-Encoding header allows gzip."""
    return next((weight > 0 for (name, _), weight in _weighed(accept_encoding) if name in ("gzip", "*")), False)


def _weighed(header: str) -> Iterator[tuple[tuple[str, str], float]]:
    """Yield the choices in a header: each with its version, if any, and its weight (``q=``); 0 if it is invalid."""
    for choice in header.lower().split(","):
        name, *parameters = (part.strip() for part in choice.split(";"))
        values = dict(part.partition("=")[::2] for part in parameters)
        weight = 0.0
        with contextlib.suppress(ValueError):
            weight = float(values.get("q", "1"))
        yield (name, values.get("version", "")), weight if 0 <= weight <= 1 else 0.0
