"""Sends one message by Apprise, in a process of its own: a service that answers without end ends only that.

The message comes as JSON on standard input, so that no secret of a URL stands in a command line. The outcome
is the exit status and nothing else: what Apprise and the service say may repeat the secrets.
"""

from __future__ import annotations

import json
import logging
import resource
import signal
import sys
from typing import Any, NoReturn

#: Apprise with all it loads takes 60 MB; a mail with attachments is none of ours
_MOST_BYTES = 256 << 20

REFUSED, UNKNOWN_URL, REDIRECTED, TOO_LARGE = 10, 11, 12, 13
PROBLEMS = {
    REFUSED: "the service cannot be reached or refused it",
    UNKNOWN_URL: "Apprise does not know the URL",
    REDIRECTED: "the service redirects, which is not followed; configure the address that it leads to",
    TOO_LARGE: "the service answers more than fits into memory",
}


def limited(seconds: float) -> None:
    """End this process at its deadline, also when nobody is left to do it, and bound its memory.

    Private writable memory only: libraries and stacks that are merely mapped cost nothing.
    """
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, seconds + 1.0)
    resource.setrlimit(resource.RLIMIT_DATA, (_MOST_BYTES, _MOST_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def deliver(letter: dict[str, Any]) -> int:
    """Send a message, or only see that ``urls`` are understood; return the exit status."""
    import apprise  # noqa: PLC0415 - limits come first
    import requests  # noqa: PLC0415 - Apprise brings it

    # It writes URLs, answers and passwords into the log when something fails.
    logging.disable(logging.CRITICAL)
    if "urls" in letter:
        known = all(apprise.Apprise.instantiate(url) is not None for url in letter["urls"])
        return 0 if known else UNKNOWN_URL
    redirects = []

    def refuse(self: object, response: requests.Response) -> None:  # noqa: ARG001 - a method of a session
        redirects.append(response.is_redirect)

    # The one place that all of requests goes through, and so all versions and plugins of Apprise.
    requests.Session.get_redirect_target = refuse  # type: ignore[assignment]
    service = apprise.Apprise.instantiate(letter["url"])
    if service is None:
        return UNKNOWN_URL
    sender = apprise.Apprise()
    sender.add(service)
    # Said to be text, it is escaped wherever a service wants HTML.
    taken = sender.notify(
        letter["body"],
        title=letter["title"],
        notify_type=letter["type"],
        body_format=apprise.NotifyFormat.TEXT,
    )
    if taken:
        return 0
    return REDIRECTED if any(redirects) else REFUSED


def main() -> NoReturn:
    """Do it."""
    letter = json.load(sys.stdin)
    limited(letter["seconds"])
    try:
        status = deliver(letter)
    except MemoryError:
        status = TOO_LARGE
    except Exception:  # noqa: BLE001 - its text may hold a secret
        status = REFUSED
    sys.exit(status)


if __name__ == "__main__":
    main()
