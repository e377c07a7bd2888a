"""Everything that Apprise reaches by a URL: ntfy, e-mail, Slack, Discord, Telegram, Gotify, webhooks, ...

Apprise and its libraries read answers of any size for as long as they take, so the daemon never imports it. One process
has it loaded (``apprise_worker``) and forks for each message, with a deadline and a limit of memory: many at once share
its memory (46 MB; ten that hang take 120 MB together) and none waits for another. It is kept warm from the
first sign that memory may run out (level info), because starting Python and loading Apprise takes a second, and far
longer once memory is short.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import re
import socket
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from wslgpud import optional_packages
from wslgpud.alerts.channels import Channel, DeliveryError, body
from wslgpud.alerts.channels import apprise_worker as worker
from wslgpud.config import ConfigError
from wslgpud.host import unprotected
from wslgpud.probes.supervisor import clean_environment, python_command
from wslgpud.security import safe_files
from wslgpud.security.run_as import Command, start
from wslgpud.words import MAX_CHARACTERS, cause, say
from wslgpud.words.units import one_line

#: time limit for a message, including the start of Python (half a second) and a slow mail server
TIMEOUT_SECONDS = 60.0
_INERT = str.maketrans({"<": "\u2039", ">": "\u203a", "@": "\uff20"})
_TYPES = {"ok": "success", "info": "info", "warning": "warning"}


def urls_from(urls: tuple[str, ...], file: str) -> list[str]:
    """Return the URLs of the configuration and of a file with one per line; ConfigError: it cannot be read."""
    if not file:
        return list(urls)
    try:
        lines = safe_files.contents(file, follow=True).decode().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            "alerts.urls_file: cannot read {file}: {error}", file=str(file), error=cause(error)
        ) from error
    return [*urls, *(line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#"))]


#: variables about network access; the child gets nothing else of our environment
_PASSED = frozenset(
    {"http_proxy", "https_proxy", "all_proxy", "no_proxy", "requests_ca_bundle", "ssl_cert_file", "ssl_cert_dir"}
)
#: minimum delay before a warm process that has died is restarted
_RESTART_SECONDS = 30.0
#: how long to wait for the exit status of a process whose last request has failed
_DEATH_SECONDS = 1.0


class AppriseProcess:
    """Passes requests to the process and waits for their results; from any thread.

    The process lives from the first request until none is waiting and it need not be warm. Each request carries its own
    socket for the answer, which closes once all processes that could answer have died.
    """

    def __init__(self, command: Sequence[str] | None = None) -> None:
        """Start nothing yet; ``command`` replaces the worker."""
        self._command = list(command or python_command(worker.__name__))
        self._lock = threading.Lock()
        self._running: tuple[subprocess.Popen[bytes], socket.socket] | None = None
        self._asking = 0
        self._warm = False
        self._begun_mono = float("-inf")

    def keep_warm(self, *, needed: bool) -> None:
        """Keep the process ready before there is a request, or stop doing so."""
        self._warm = needed
        if not self._lock.acquire(blocking=False):  # a request starts it, which may take long; ticks do not wait
            return
        try:
            self._end_if_done()
            if needed and self._running is None and time.monotonic() - self._begun_mono >= _RESTART_SECONDS:
                self._begun_mono = time.monotonic()
                with contextlib.suppress(OSError):  # the next request reports it
                    self._start()
        finally:
            self._lock.release()

    def ask(self, request: Mapping[str, Any], timeout_seconds: float) -> int:
        """Return a request's status (see ``apprise_worker``); DeliveryError: too late, or the process has died."""
        with self._lock:
            self._asking += 1
        try:
            return self._ask(json.dumps({**request, "seconds": timeout_seconds}).encode(), timeout_seconds)
        except TimeoutError:
            raise DeliveryError(say("no answer within {limit_seconds}", limit_seconds=timeout_seconds)) from None
        except OSError as error:
            why = cause(error)
            raise DeliveryError(say("cannot start {program}: {why}", program=self._command[0], why=why)) from error
        finally:
            with self._lock:
                self._asking -= 1
                self._end_if_done()

    def _ask(self, request: bytes, timeout_seconds: float) -> int:
        answer, answering = socket.socketpair()
        with answer:
            # A file in memory: unlike a pipe, it cannot block the writer, whatever its size.
            with answering, os.fdopen(os.memfd_create("request"), "w+b", buffering=0) as file, self._lock:
                file.write(request)
                file.seek(0)
                self._end_if_done()
                process, requests = self._running or self._start()
                with contextlib.suppress(OSError):  # it does not read, or has died
                    socket.send_fds(requests, [b"\n"], [file.fileno(), answering.fileno()])
            answer.settimeout(timeout_seconds)
            if status := answer.recv(1):
                return status[0]
        with contextlib.suppress(subprocess.TimeoutExpired):  # it was only the fork
            process.wait(_DEATH_SECONDS)
        raise DeliveryError(say("the sending process has died"))

    def _start(self) -> tuple[subprocess.Popen[bytes], socket.socket]:
        kept = {name: value for name, value in os.environ.items() if name.lower() in _PASSED}
        requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        requests.setblocking(False)
        command, null = Command(unprotected(self._command), {**clean_environment(), **kept}), subprocess.DEVNULL
        with theirs:
            process = start(command, stdin=theirs.fileno(), stdout=null, stderr=null)
        self._running = process, requests
        return self._running

    def _end_if_done(self) -> None:
        """Drop a process that has died, and end one that is no longer needed."""
        if self._running is not None:
            process, requests = self._running
            if process.poll() is not None or not (self._asking or self._warm):
                requests.close()
                threading.Thread(target=process.wait, name="alerts-apprise", daemon=True).start()
                self._running = None


#: one for all channels
PROCESS = AppriseProcess()


_PROBLEMS = {
    worker.REFUSED: say("the service cannot be reached or refused it"),
    worker.UNKNOWN_URL: say("Apprise does not know the URL"),
    worker.REDIRECTED: say("the service redirects, which is not followed; configure the address that it leads to"),
    worker.TOO_LARGE: say("the service's answer is too large"),
}


class AppriseChannel(Channel):
    """One URL: each is a separate channel, so that a dead one does not delay others."""

    human = True

    def __init__(self, url: str, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        """Keep the URL; ``understood`` validates it."""
        self._url = url
        self._timeout = timeout_seconds
        # The name must not change across restarts, for queued messages, and must not reveal the URL.
        self.name = f"{_kind(url)}-{hashlib.sha256(url.encode()).hexdigest()[:8]}"

    def send(self, message: Mapping[str, Any]) -> None:
        headline = inert(one_line(str(message.get("headline", ""))))
        request = {
            "url": self._url,
            "title": headline,
            "body": inert(body(message)) or headline,
            "type": _TYPES.get(str(message.get("level")), "failure"),
        }
        if status := PROCESS.ask(request, self._timeout):  # no text of the child's is passed on
            raise DeliveryError(_PROBLEMS.get(status, _PROBLEMS[worker.REFUSED]))

    def keep_warm(self, *, needed: bool) -> None:
        PROCESS.keep_warm(needed=needed)


def understood(urls: Sequence[str]) -> None:
    """Check that Apprise is installed and knows each URL, without sending; else ConfigError, without secrets."""
    if not urls:
        return
    if importlib.util.find_spec("apprise") is None:
        raise ConfigError("alerts.urls needs Apprise: {remedy}", remedy=optional_packages.remedy("apprise"))
    for url in urls if _unknown(urls) else ():
        if _unknown([url]):
            raise ConfigError(
                "alerts.urls: Apprise cannot use a URL of the kind {kind}://; "
                "https://github.com/caronc/apprise/wiki has the forms",
                kind=_kind(url),
            )


def inert(text: str) -> str:
    """Return a text with mentions, markup and labelled links of chats and mails disabled.

    Program names are foreign text: ``<!channel>``, ``@everyone``, ``[update](http://...)``.
    """
    lines = (one_line(line, MAX_CHARACTERS) for line in text.split("\n"))
    return "\n".join(lines).translate(_INERT).replace("](", "] (")


def _unknown(urls: Sequence[str]) -> bool:
    """Return whether Apprise does not know one of these; a timeout on a busy machine proves nothing."""
    with contextlib.suppress(DeliveryError):
        return PROCESS.ask({"urls": list(urls)}, TIMEOUT_SECONDS) == worker.UNKNOWN_URL
    return False


def _kind(url: str) -> str:
    scheme = re.match(r"[a-z0-9]{1,20}(?=:)", url)
    return scheme[0] if scheme is not None else "?"
