"""Requests, responses, and the router in between, with its limits."""

from __future__ import annotations

import asyncio
import functools
import gzip
import hashlib
import json
import logging
import os
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from email.utils import formatdate
from http import HTTPStatus
from typing import Any, TypeVar

from wslgpud.model import Reading
from wslgpud.serve.access import CHALLENGE, HostRule, Passwords, WebConfig, WebConfigFile, cross_origin
from wslgpud.serve.publisher import HTTP_REQUESTS
from wslgpud.sources.procfs import Peer
from wslgpud.store import StoreError

#: Sent with every response, unless it has its own.
SECURITY_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}

#: Size limit of a request's head, in bytes.
MAX_HEAD_BYTES = 16_384
#: Requests that may wait for a thread at a time; more get 503.
MAX_WAITING = 64
#: Password checks of one client that may wait: guessing must not lock out legitimate users.
MAX_GUESSES = 8
#: Threads for handlers that may block (a lock, a driver), and for those that read much of the database into memory,
#: which limits how many of the largest answers are built at a time.
THREADS = 2
HEAVY_THREADS = 2
#: Time limit of such handlers; afterwards the client gets 504.
HANDLER_SECONDS = 30.0

#: Logged characters of a failed path.
_MAX_LOGGED = 200

#: shorter answers are not worth compressing
_WORTH_ZIPPING_BYTES = 1400
_VARY = {"Vary": "Accept-Encoding"}
_ZIPPED = {"Content-Encoding": "gzip"}

_log = logging.getLogger(__name__)
_T = TypeVar("_T")
Headers = list[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class Request:
    """A request for handlers; header names are in lower case."""

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    head_bytes: int = 0
    version: str = "1.1"
    #: the client's network, see ``access.network_of``
    client: str = ""
    peer: Peer | None = None
    #: None where it was not read
    body: bytes | None = None

    @property
    def has_body(self) -> bool:
        return "transfer-encoding" in self.headers or self.headers.get("content-length", "0") != "0"

    @property
    def accepts_gzip(self) -> bool:
        return "gzip" in self.headers.get("accept-encoding", "")


@dataclass(frozen=True, slots=True)
class Response:
    status: int
    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    headers: Mapping[str, str] = field(default_factory=dict)


def text(status: int, line: str, headers: Mapping[str, str] | None = None) -> Response:
    """Answer with a line of text."""
    return Response(status, (line + "\n").encode(), headers=headers or {})


def dumps(value: Any) -> bytes:
    """Encode JSON; bytes in names of files and programs that are not UTF-8 are escaped."""
    document = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return document.encode("utf-8", "backslashreplace")


class CachedDocument:
    """Content with its type; a client that has it already, by its ETag, gets an empty 304."""

    def __init__(self, body: bytes, content_type: str, *, level: int = 1) -> None:
        """Compress it. Level 1 takes a third of the time of level 6 for a fifth more bytes."""
        self._zipped = gzip.compress(body, level, mtime=0)
        self._content_type = content_type
        self._etag = f'"{hashlib.sha256(body).hexdigest()}"'

    def answer(self, request: Request, headers: Mapping[str, str]) -> Response:
        """Answer a request with it and ``headers``."""
        headers = {**_VARY, "ETag": self._etag, **headers}
        if request.headers.get("if-none-match") == self._etag:
            return Response(304, b"", "", headers)
        if request.accepts_gzip:
            return Response(200, self._zipped, self._content_type, {**headers, **_ZIPPED})
        return Response(200, gzip.decompress(self._zipped), self._content_type, headers)


def packed(request: Request, body: bytes) -> Response:
    """Answer with JSON, gzipped if the client accepts it and it is long enough."""
    if len(body) < _WORTH_ZIPPING_BYTES or not request.accepts_gzip:
        return Response(200, body, "application/json", _VARY)
    return Response(200, gzip.compress(body, 1, mtime=0), "application/json", {**_VARY, **_ZIPPED})


@dataclass(eq=False)
class Problem(Exception):  # an answer, not an error
    """A rejected request; ``detail`` says why, and what is valid."""

    status: int
    detail: str
    headers: Mapping[str, str] = field(default_factory=dict)

    def answer(self, path: str) -> Response:
        """Answer with a line of text, or for the API in RFC 9457 format."""
        if not path.startswith("/api/"):
            return text(self.status, self.detail, self.headers)
        title = HTTPStatus(self.status).phrase
        document = {"type": "about:blank", "title": title, "status": self.status, "detail": self.detail}
        return Response(self.status, dumps(document), "application/problem+json", self.headers)


@dataclass(frozen=True, slots=True)
class Route:
    """A path and its handler, for GET and HEAD, or for POST.

    A path that ends in ``/{...}`` matches any text there. ``handler`` runs on the server's only thread and must not
    block; with ``waits`` it runs on one of a few other threads, so that it never delays a scrape. A ``heavy`` one reads
    history; it waits only for others of its kind.
    """

    path: str
    handler: Callable[[Request], Response]
    waits: bool = False
    heavy: bool = False
    #: POST for a route that changes something, without a body unless this one is allowed
    method: str = "GET"
    max_body_bytes: int = 0
    #: only for root and the daemon's own user, on the Unix socket
    owner: bool = False

    def admits(self, peer: Peer | None) -> bool:
        return not self.owner or (peer is not None and peer.uid in (0, os.geteuid()))


class Threads:
    """A few threads for handlers that would block the server's own, with a bounded queue."""

    def __init__(self, count: int, name: str, max_of_client: int = MAX_WAITING) -> None:
        """Prepare; threads start when first needed. ``max_of_client`` is the limit of queued work per client."""
        self._max_of_client = max_of_client
        self._waiting: Counter[str] = Counter()
        self._pool = ThreadPoolExecutor(count, thread_name_prefix=name)

    async def run(self, work: Callable[[], _T], client: str = "") -> _T:
        """Return the result of ``work``. Raises Problem: the queue, or the share of ``client``, is full."""
        if self._waiting[client] >= self._max_of_client or self._waiting.total() >= MAX_WAITING:
            raise Problem(503, "too many requests are waiting; try again", {"Retry-After": "1"})
        self._waiting[client] += 1
        try:
            return await asyncio.wrap_future(self._pool.submit(work))
        finally:
            self._waiting -= Counter((client,))

    def close(self) -> None:
        """Accept no more work; do not wait for running work."""
        self._pool.shutdown(wait=False, cancel_futures=True)


class Router:
    """Answers requests: checks, the cheapest first, then the route's handler."""

    def __init__(self, routes: Iterable[Route], host_rule: HostRule, web: WebConfigFile) -> None:
        """Serve ``routes`` to clients that ``host_rule`` and the web configuration admit."""
        self._routes = {route.path: route for route in routes}
        #: routes for all paths below a folder, by folder
        self._templates = {p.rpartition("/")[0]: r for p, r in self._routes.items() if p.endswith("}")}
        self._host_rule, self._web = host_rule, web
        self._threads = Threads(THREADS, "wslgpud-http")
        self._heavy = Threads(HEAVY_THREADS, "wslgpud-history")
        # One thread: guessing passwords then takes at most one core.
        self._bcrypt = Threads(1, "wslgpud-bcrypt", MAX_GUESSES)
        self._passwords = Passwords(self._bcrypt.run)
        self._counts: Counter[tuple[str, int]] = Counter()

    async def respond(self, request: Request) -> tuple[Response, Headers]:
        """Answer a request; an error in a handler becomes a 500 and a line in the log, no more."""
        web = self._web.current
        try:
            response = await self._answer(request, web)
        except Problem as refused:
            response = refused.answer(request.path)
        except asyncio.TimeoutError:
            response = Problem(504, f"no answer within {HANDLER_SECONDS:g} s").answer(request.path)
        except StoreError as error:  # not logged at each request: the store and the doctor report it
            response = Problem(503, str(error)).answer(request.path)
        except Exception as error:  # noqa: BLE001 - whatever a handler does, the server stays
            where = traceback.extract_tb(error.__traceback__)[-1]
            # A path may contain line breaks and terminal escapes, and this goes to the journal.
            path = ascii(request.path[:_MAX_LOGGED])[1:-1]
            _log.error("%s failed: %r in %s:%s", path, error, where.filename, where.lineno)
            response = Problem(500, "internal error; the daemon's log says more").answer(request.path)
        # Unknown paths share one series, or strangers could create thousands.
        route = self._route(request.path)
        self._counts[route.path if route else "other", response.status] += 1
        headers = response_headers(response)
        if request.has_body and request.body is None:  # so no request can follow on this connection
            headers.append((b"connection", b"close"))
        return response, headers

    async def _answer(self, request: Request, web: WebConfig) -> Response:
        close, host = {"Connection": "close"}, request.headers.get("host", "")
        route = self._route(request.path)
        allowed = ("POST",) if route is not None and route.method == "POST" else ("GET", "HEAD")
        other_name = "this server does not answer to that host name; see server.allowed_hosts"
        own_page = "a page of another origin asked for this; open the page here, or use a program"
        not_you, no_body = "only root and the daemon's user may do that", "a body of this length is not accepted here"
        for wrong, status, detail, headers in (
            # The first two: requests that a browser makes for another site's page.
            (not self._host_rule.allows(host), 421, other_name, {}),
            (cross_origin(request.path, request.headers), 403, own_page, {}),
            (request.version not in ("1.0", "1.1"), 505, "only HTTP/1.1", close),  # h11 accepts any
            # h11 limits only heads that come in several pieces
            (request.head_bytes > MAX_HEAD_BYTES, 431, f"more than {MAX_HEAD_BYTES} bytes of headers", close),
            (request.method not in allowed, 405, f"only {' and '.join(allowed)}", {"Allow": ", ".join(allowed)}),
            (route is not None and not route.admits(request.peer), 403, not_you, {}),
            (request.has_body and request.body is None, 413, no_body, {}),
        ):
            if wrong:
                raise Problem(status, detail, headers)
        authorization = request.headers.get("authorization", "")
        if web.users and not await self._passwords.accept(web.users, authorization, request.client):
            raise Problem(401, "user name and password required", CHALLENGE)
        if route is None:
            raise Problem(404, "there is nothing here; /api/v1/openapi.json lists all paths of the API")
        if not route.waits and not route.heavy:
            return route.handler(request)
        threads = self._heavy if route.heavy else self._threads
        return await asyncio.wait_for(threads.run(functools.partial(route.handler, request)), HANDLER_SECONDS)

    def max_body_bytes(self, request: Request) -> int:
        """Return how much of a request's body is worth reading: nothing of a client's who may not do that."""
        route = self._route(request.path)
        wanted = route is not None and route.method == request.method and route.admits(request.peer)
        return route.max_body_bytes if route is not None and wanted else 0

    def _route(self, path: str) -> Route | None:
        folder, _, name = path.rpartition("/")
        return self._routes.get(path) or (self._templates.get(folder) if name else None)

    def refuse(self, status: int) -> tuple[Response, Headers]:
        """Answer a malformed request."""
        self._counts["other", status] += 1
        response = text(status, HTTPStatus(status).phrase, {"Connection": "close"})
        return response, response_headers(response)

    def readings(self) -> Iterator[Reading]:
        for (path, status), count in sorted(self._counts.items()):
            yield Reading(HTTP_REQUESTS, count, (path, str(status)))

    def close(self) -> None:
        for threads in (self._threads, self._heavy, self._bcrypt):
            threads.close()


def response_headers(response: Response) -> Headers:
    """Return all headers of ``response``; its own take precedence over the defaults.

    The date is set here, and no header names the server's software: versions only help attackers.
    """
    headers = {
        **SECURITY_HEADERS,
        **response.headers,
        "Date": formatdate(usegmt=True),
        "Content-Type": response.content_type,
        # for 304 it would be the length of the body that is not sent
        "Content-Length": "" if response.status == 304 else str(len(response.body)),
    }
    return [(k.lower().encode("latin-1"), v.encode("latin-1")) for k, v in headers.items() if v]
