"""Prometheus' Alertmanager, API v2.

https://github.com/prometheus/alertmanager/blob/main/api/v2/openapi.yaml
"""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from base64 import b64encode
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

from wslgpud.alerts.channels import DeliveryError
from wslgpud.config import ConfigError

TIMEOUT_SECONDS = 10.0
#: as often as Prometheus itself says that an alert still fires
REFRESH_SECONDS = 60.0
#: an alert that is not renewed ends after so many of these: the daemon died
LIFE_REFRESHES = 4


def alert_name(rule: str) -> str:
    """Write a rule as Prometheus' people name alerts: ``WslgpudOomKill``."""
    return "Wslgpud" + "".join(word.capitalize() for word in rule.split("_"))


def _time(moment: datetime) -> str:
    return moment.astimezone(timezone.utc).isoformat(timespec="milliseconds")


class AlertmanagerChannel:
    """Fires, renews and resolves alerts. An alert is known by its labels, and its level is one of them."""

    human = False
    refresh_seconds = REFRESH_SECONDS

    def __init__(self, url: str) -> None:
        """Keep the address; a user and password in it are sent as such and shown nowhere.

        Raises:
            ConfigError: it is no HTTP address.
        """
        try:
            parts = urllib.parse.urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:  # a port that is no number, half an IPv6 address
            host = None
        if not host or parts.scheme not in ("http", "https"):
            raise ConfigError("alerts.alertmanager_urls must hold addresses like http://127.0.0.1:9093")
        place = host if port is None else f"{host}:{port}"
        self.name = f"alertmanager-{place}"
        bare = urllib.parse.urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
        self._url = bare.rstrip("/") + "/api/v2/alerts"
        self._headers = {"Content-Type": "application/json"}
        if parts.username is not None:
            pair = f"{urllib.parse.unquote(parts.username)}:{urllib.parse.unquote(parts.password or '')}"
            self._headers["Authorization"] = "Basic " + b64encode(pair.encode()).decode()
        # A proxy of the user's leads into the net, not to an Alertmanager on this machine.
        here = host == "localhost" or host.startswith("127.")
        proxies = urllib.request.ProxyHandler({} if here else None)
        self._open = urllib.request.build_opener(proxies).open

    def send(self, message: Mapping[str, Any]) -> None:
        """Fire, change or resolve the alert of an incident.

        Raises:
            DeliveryError: Alertmanager cannot be reached or refuses it.
        """
        self._post(self._alerts(message))

    def refresh(self, messages: Sequence[Mapping[str, Any]]) -> None:
        """Say that these still fire, which also tells an Alertmanager that has lost its memory.

        Raises:
            DeliveryError: Alertmanager cannot be reached or refuses it.
        """
        self._post([self._alert(m, str(m["level"]), open_=True) for m in messages])

    def _alerts(self, message: Mapping[str, Any]) -> list[dict[str, Any]]:
        new, old = str(message.get("level", "ok")), str(message.get("previous_level", "ok"))
        alerts = []
        if old not in ("ok", new):
            alerts.append(self._alert(message, old, open_=False))
        if new != "ok":
            alerts.append(self._alert(message, new, open_=True))
        return alerts or [self._alert(message, new, open_=False)]

    def _alert(self, message: Mapping[str, Any], level: str, *, open_: bool) -> dict[str, Any]:
        now = datetime.now(timezone.utc)
        started = datetime.fromisoformat(str(message.get("since") or message.get("at") or _time(now)))
        ends = now + timedelta(seconds=self.refresh_seconds * LIFE_REFRESHES) if open_ else now
        names = {"summary": "headline", "description": "evidence"}
        names |= {name: name for name in ("advice", "incident", "runbook")}
        return {
            "labels": {
                "alertname": alert_name(str(message.get("rule", "test"))),
                "resource": str(message.get("resource", "")),
                "severity": level,
                "instance": str(message.get("host", "")),
                "job": "wslgpud",
            },
            "annotations": {k: str(message[v]) for k, v in names.items() if message.get(v) is not None},
            # One that ends before it starts is refused; the clock may have been set back meanwhile.
            "startsAt": _time(min(started, ends)),
            "endsAt": _time(ends),
        }

    def _post(self, alerts: list[dict[str, Any]]) -> None:
        request = urllib.request.Request(  # noqa: S310 - http and https only, checked above
            self._url, json.dumps(alerts).encode(), self._headers, method="POST"
        )
        try:
            with self._open(request, timeout=TIMEOUT_SECONDS) as answer:
                answer.read(1000)
        except urllib.error.HTTPError as error:
            with error:
                said = error.read(200).decode("utf-8", "replace").strip()
            # 400 is about this very message; all else may be mended at the other end
            raise DeliveryError(f"answered {error.code}: {said}", permanent=error.code == 400) from error
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", error)
            raise DeliveryError(f"cannot be reached: {reason}") from error
