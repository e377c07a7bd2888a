"""Sends messages by Apprise, each in a fork of its own: a service that answers without end ends only that.

Requests come by the socket that is standard input, so that no secret of a URL stands in a command line: each as two
descriptors, of a file that holds it as JSON and of a socket, to which one byte tells how it went. Nothing else is
said: what Apprise and the service say may repeat the secrets.
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

#: Apprise with all it loads takes 46 MB; what an answer may add must fit into the unit's MemoryMax=
_MOST_BYTES = 112 << 20

TAKEN, REFUSED, UNKNOWN_URL, REDIRECTED, TOO_LARGE = range(5)


def limited(seconds: float) -> None:
    """End this process at its deadline, also when nobody is left to do it, and bound its memory.

    Private writable memory only: libraries and stacks that are merely mapped cost nothing.
    """
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, seconds + 1.0)
    resource.setrlimit(resource.RLIMIT_DATA, (_MOST_BYTES, _MOST_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def deliver(request: dict[str, Any]) -> int:
    """Send a message, or only see that ``urls`` are understood; return how it went."""
    import apprise  # the daemon reads this module's words, and must not load it
    import requests  # Apprise brings it

    if "urls" in request:
        known = all(apprise.Apprise.instantiate(url) is not None for url in request["urls"])
        return TAKEN if known else UNKNOWN_URL
    redirects = []

    def refuse(self: object, response: requests.Response) -> None:  # noqa: ARG001 - a method of a session
        redirects.append(response.is_redirect)

    # The one place that all of requests goes through, and so all versions and plugins of Apprise.
    requests.Session.get_redirect_target = refuse  # type: ignore[assignment]
    service = apprise.Apprise.instantiate(request["url"])
    if service is None:
        return UNKNOWN_URL
    sender = apprise.Apprise()
    sender.add(service)
    # Said to be text, it is escaped wherever a service wants HTML.
    taken = sender.notify(
        request["body"], title=request["title"], notify_type=request["type"], body_format=apprise.NotifyFormat.TEXT
    )
    if taken:
        return TAKEN
    return REDIRECTED if any(redirects) else REFUSED


def _deliver_and_end(given: int, answer: int) -> NoReturn:
    os.dup2(1, 0)  # further requests are not for this process
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

    # It writes URLs, answers and passwords into the log when something fails.
    logging.disable(logging.CRITICAL)
    apprise.Apprise.instantiate("json://127.0.0.1")  # loads all services, once
    gc.freeze()  # what the forks share stays shared
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody is to wait for them
    requests = socket.socket(fileno=0)
    while handed := socket.recv_fds(requests, 1, 2)[1]:
        if os.fork() == 0:
            _deliver_and_end(*handed)
        for descriptor in handed:
            os.close(descriptor)


if __name__ == "__main__":
    main()
