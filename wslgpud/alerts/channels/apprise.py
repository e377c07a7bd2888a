"""Everything that Apprise reaches by a URL: ntfy, e-mail, Slack, Discord, Telegram, Gotify, webhooks, ...

Apprise reads answers of any size for as long as they take, and so do the libraries below it. Each message
is therefore sent by a process of its own with a deadline and a limit of memory (``postman``, ``postoffice``);
the daemon never imports it.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import re
from collections.abc import Mapping, Sequence
from typing import Any

from wslgpud import documents, extras
from wslgpud.alerts.channels import DeliveryError, postman
from wslgpud.alerts.channels.postoffice import OFFICE
from wslgpud.alerts.message import body
from wslgpud.config_key import ConfigError
from wslgpud.units import one_line
from wslgpud.words import MOST_CHARACTERS, cause, say

#: for a message to be taken, the start of Python (half a second) and a mail server that thinks included
TIMEOUT_SECONDS = 60.0
_INERT = str.maketrans({"<": "\u2039", ">": "\u203a", "@": "\uff20"})
_TYPES = {"ok": "success", "info": "info", "warning": "warning"}


def urls_from(urls: tuple[str, ...], file: str) -> list[str]:
    """Return the URLs of the configuration and of a file that holds one a line.

    Raises:
        ConfigError: the file cannot be read.
    """
    if not file:
        return list(urls)
    try:
        lines = documents.contents(file, follow=True).decode().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            say("alerts.urls_file: cannot read {file}: {error}", file=str(file), error=cause(error))
        ) from error
    return [*urls, *(line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#"))]


_PROBLEMS = {
    postman.REFUSED: say("the service cannot be reached or refused it"),
    postman.UNKNOWN_URL: say("Apprise does not know the URL"),
    postman.REDIRECTED: say(
        "the service redirects, which is not followed; configure the address that it leads to"
    ),
    postman.TOO_LARGE: say("the service answers more than fits into memory"),
}


class AppriseChannel:
    """One URL: each has a line of its own, so that a dead one delays no other."""

    human = True

    def __init__(self, url: str, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        """Keep the URL; ``understood`` says whether it is one."""
        self._url = url
        self._timeout = timeout_seconds
        # The name must stay the same over restarts, for what waits, and must not betray the URL.
        self.name = f"{_kind(url)}-{hashlib.sha256(url.encode()).hexdigest()[:8]}"

    def send(self, message: Mapping[str, Any]) -> None:
        """Hand it over.

        Raises:
            DeliveryError: the service cannot be reached or refuses it.
        """
        headline = inert(one_line(str(message.get("headline", ""))))
        letter = {
            "url": self._url,
            "title": headline,
            "body": inert(body(message)) or headline,
            "type": _TYPES.get(str(message.get("level")), "failure"),
        }
        status = OFFICE.ask(letter, self._timeout)
        if status is None:
            raise DeliveryError(say("no answer within {limit_seconds}", limit_seconds=self._timeout))
        if status:  # no word of the child's is passed on
            raise DeliveryError(_PROBLEMS.get(status, _PROBLEMS[postman.REFUSED]))

    def stand_by(self, *, needed: bool) -> None:
        """Be ready to send at once."""
        OFFICE.stand_by(needed=needed)


def understood(urls: Sequence[str]) -> None:
    """See that Apprise can use each URL; nothing is sent.

    Raises:
        ConfigError: Apprise is not installed, or does not know such a URL. The URL itself, which holds
            secrets, is never shown.
    """
    if not urls:
        return
    if importlib.util.find_spec("apprise") is None:
        raise ConfigError(say("alerts.urls needs Apprise: {remedy}", remedy=extras.remedy("apprise")))
    if not _unknown(urls):
        return
    for url in urls:
        if _unknown([url]):
            raise ConfigError(
                say(
                    "alerts.urls: Apprise cannot use a URL of the kind {kind}://; "
                    "https://github.com/caronc/apprise/wiki has the forms",
                    kind=_kind(url),
                )
            )


def inert(text: str) -> str:
    """Return a text without what chats and mails take for mentions, markup and links with another label.

    Names of programs are anybody's choice: ``<!channel>``, ``@everyone``, ``[update](http://...)``.
    """
    lines = (one_line(line, MOST_CHARACTERS) for line in text.split("\n"))
    return "\n".join(lines).translate(_INERT).replace("](", "] (")


def _unknown(urls: Sequence[str]) -> bool:
    """Tell whether Apprise does not know one of these; a machine too busy to be asked proves nothing."""
    with contextlib.suppress(DeliveryError):
        return OFFICE.ask({"urls": list(urls)}, TIMEOUT_SECONDS) == postman.UNKNOWN_URL
    return False


def _kind(url: str) -> str:
    scheme = re.match(r"[a-z0-9]{1,20}(?=:)", url)
    return scheme[0] if scheme is not None else "?"
