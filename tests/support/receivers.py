"""Receivers on loopback that take messages, refuse them, hang, die and come back."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from email import message_from_bytes, policy
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from aiosmtpd.controller import Controller

from tests.support.daemons import PATIENCE_SECONDS
from tests.support.servers import free_port


class Webhook:
    """A real HTTP server; ``mood`` is its behaviour: take, refuse, hang."""

    def __init__(self) -> None:
        self.port = free_port()
        self.mood = "take"
        self.got: list[dict[str, Any]] = []
        self.asked = 0
        self.release = threading.Event()
        self._server: ThreadingHTTPServer | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    def start(self) -> None:
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                data = self.rfile.read(int(self.headers["Content-Length"]))
                owner.asked += 1
                if owner.mood == "hang":
                    owner.release.wait(PATIENCE_SECONDS)
                    return
                if owner.mood == "take":
                    owner.got.append(json.loads(data))
                self.send_response(200 if owner.mood == "take" else 503)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def stop(self) -> None:
        self.release.set()
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None


@contextmanager
def webhook() -> Iterator[Webhook]:
    server = Webhook()
    server.start()
    try:
        yield server
    finally:
        server.stop()


class Mailbox:
    """The messages received by a real SMTP server; ``mood`` as above."""

    def __init__(self) -> None:
        self.mood = "take"
        self.mails: list[Any] = []

    async def handle_DATA(  # noqa: N802 - the server's word for it
        self, server: Any, session: Any, envelope: Any
    ) -> str:
        if self.mood != "take":
            return "451 try again later"
        self.mails.append(message_from_bytes(envelope.content, policy=policy.default))
        return "250 taken"


@contextmanager
def smtp() -> Iterator[tuple[Mailbox, int]]:
    """Run an SMTP server; yield its mailbox and port."""
    mailbox, port = Mailbox(), free_port()
    controller = Controller(mailbox, hostname="127.0.0.1", port=port, ready_timeout=PATIENCE_SECONDS)
    controller.start()
    try:
        yield mailbox, port
    finally:
        controller.stop()
