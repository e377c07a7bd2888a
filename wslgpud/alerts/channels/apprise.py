"""Everything that Apprise reaches by a URL: ntfy, e-mail, Slack, Discord, Telegram, Gotify, webhooks, ..."""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from wslgpud import extras
from wslgpud.alerts.channels import DeliveryError
from wslgpud.alerts.message import body
from wslgpud.config import ConfigError

_TYPES = {"ok": "success", "info": "info", "warning": "warning"}


def urls_from(urls: tuple[str, ...], file: str) -> list[str]:
    """Return the URLs of the configuration and of a file that holds one a line.

    Raises:
        ConfigError: the file cannot be read.
    """
    if not file:
        return list(urls)
    try:
        lines = Path(file).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"alerts.urls_file: cannot read {file}: {error}") from error
    return [*urls, *(line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#"))]


class AppriseChannel:
    """One URL: each has a line of its own, so that a dead one delays no other."""

    human = True

    def __init__(self, url: str) -> None:
        """Understand the URL.

        Raises:
            ConfigError: Apprise is not installed, or does not know such a URL. The URL itself, which holds
                secrets, is never shown.
        """
        try:
            import apprise  # noqa: PLC0415 - 28 MB of memory that only a URL needs
        except ImportError as error:
            raise ConfigError(f"alerts.urls needs Apprise: {extras.remedy('apprise')}") from error
        # It writes URLs, answers and passwords into the log when something fails.
        logging.getLogger("apprise").setLevel(logging.CRITICAL + 1)
        scheme = re.match(r"[a-z0-9]{1,20}(?=:)", url)
        shown = scheme[0] if scheme is not None else "?"
        service = apprise.Apprise.instantiate(url)
        if service is None:
            raise ConfigError(
                f"alerts.urls: Apprise cannot use a URL of the kind {shown}://; "
                "https://github.com/caronc/apprise/wiki has the forms"
            )
        self._service = service
        # The name must stay the same over restarts, for what waits, and must not betray the URL.
        self.name = f"{shown}-{hashlib.sha256(url.encode()).hexdigest()[:8]}"

    def send(self, message: Mapping[str, Any]) -> None:
        """Hand it over.

        Raises:
            DeliveryError: the service cannot be reached or refuses it.
        """
        taken = self._service.notify(
            title=str(message.get("headline", "")),
            body=body(message) or str(message.get("headline", "")),
            notify_type=_TYPES.get(str(message.get("level")), "failure"),
        )
        if not taken:
            raise DeliveryError("the service cannot be reached or refused it")
