"""Sends messages by Apprise, each in its own fork: a service with an endless answer costs only that.

Requests come through the socket on standard input, so that no secret in a URL appears in a command line: each as two
descriptors, of a file with the JSON and of a socket that receives the status as one byte. There is no other output:
texts of Apprise and the service may repeat the secrets.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import resource
import signal
import socket
from typing import Any, NoReturn

#: Apprise with all services takes 46 MB; memory for an answer must fit into the unit's MemoryMax=
_MAX_BYTES = 112 << 20

TAKEN, REFUSED, UNKNOWN_URL, REDIRECTED, TOO_LARGE = range(5)


def limited(seconds: float) -> None:
    """End this process at its deadline, even without a parent, and limit its memory.

    Private writable memory only: libraries and stacks that are merely mapped cost nothing.
    """
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, seconds + 1.0)
    resource.setrlimit(resource.RLIMIT_DATA, (_MAX_BYTES, _MAX_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def deliver(request: dict[str, Any]) -> int:
    """Send a message, or only validate ``urls``; return the status."""
    import apprise  # the daemon imports this module's constants, and must not load Apprise
    import requests  # a dependency of Apprise

    if "urls" in request:
        known = all(apprise.Apprise.instantiate(url) is not None for url in request["urls"])
        return TAKEN if known else UNKNOWN_URL
    redirects = []

    def refuse(self: object, response: requests.Response) -> None:  # noqa: ARG001 - a method of a session
        redirects.append(response.is_redirect)

    # All use of requests, by any version and plugin of Apprise, goes through this.
    requests.Session.get_redirect_target = refuse  # type: ignore[assignment]
    service = apprise.Apprise.instantiate(request["url"])
    if service is None:
        return UNKNOWN_URL
    sender = apprise.Apprise()
    sender.add(service)
    # Declared as text, it is escaped where a service expects HTML.
    taken = sender.notify(
        request["body"], title=request["title"], notify_type=request["type"], body_format=apprise.NotifyFormat.TEXT
    )
    if taken:
        return TAKEN
    return REDIRECTED if any(redirects) else REFUSED


def _deliver_and_end(given: int, answer: int) -> NoReturn:
    os.dup2(1, 0)  # this fork must not take further requests
    try:
        with os.fdopen(given, "rb") as file:
            request = json.load(file)
        limited(request["seconds"])
        status = deliver(request)
    except MemoryError:
        status = TOO_LARGE
    except Exception:  # noqa: BLE001 - its text may hold a secret
        status = REFUSED
    os.write(answer, bytes([status]))
    os._exit(0)


def main() -> None:
    """Fork for each request until there are no more."""
    import apprise  # see above

    # On errors it logs URLs, answers and passwords.
    logging.disable(logging.CRITICAL)
    apprise.Apprise.instantiate("json://127.0.0.1")  # loads all services, once
    gc.freeze()  # keeps memory shared with the forks
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children are reaped automatically
    requests = socket.socket(fileno=0)
    while handed := socket.recv_fds(requests, 1, 2)[1]:
        if os.fork() == 0:
            _deliver_and_end(*handed)
        for descriptor in handed:
            os.close(descriptor)


if __name__ == "__main__":
    main()
