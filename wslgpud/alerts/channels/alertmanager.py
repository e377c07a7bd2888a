"""Prometheus' Alertmanager, API v2.

https://github.com/prometheus/alertmanager/blob/main/api/v2/openapi.yaml
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

from wslgpud.alerts.channels import Channel, DeliveryError
from wslgpud.config import ConfigError
from wslgpud.security import http_client
from wslgpud.words import cause, say

TIMEOUT_SECONDS = 10.0
#: limit of an answer, which is empty or a sentence
_MAX_BYTES = 1 << 16
#: the interval at which Prometheus itself repeats a firing alert
REFRESH_SECONDS = 60.0
#: an alert that is not renewed ends after this many intervals: the daemon died
LIFE_REFRESHES = 4


def alert_name(rule: str) -> str:
    """Return a rule's name in Prometheus' style: ``WslgpudOomKill``."""
    return "Wslgpud" + "".join(word.capitalize() for word in rule.split("_"))


class AlertmanagerChannel(Channel):
    """Fires, renews and resolves alerts. An alert is identified by its labels, which include its level."""

    human = False
    refresh_seconds = REFRESH_SECONDS

    def __init__(self, url: str, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        """Keep the address (ConfigError: not HTTP); a user and password in it are never shown."""
        try:
            address = http_client.parsed(url)
        except ValueError as error:  # also a port that is not a number, an incomplete IPv6 address
            raise ConfigError(say("alerts.alertmanager_urls must hold addresses like http://127.0.0.1:9093")) from error
        self.name = f"alertmanager-{address.place}"
        path = address.target.partition("?")[0].rstrip("/")
        self._address = replace(address, target=f"{path}/api/v2/alerts")
        self._timeout = timeout_seconds

    def send(self, message: Mapping[str, Any]) -> None:
        """Fire, change or resolve the alert of an incident; raises like ``refresh``."""
        new, old = str(message.get("level", "ok")), str(message.get("previous_level", "ok"))
        alerts = [] if old in ("ok", new) else [self._alert(message, old, open_=False)]
        if new != "ok" or not alerts:
            alerts.append(self._alert(message, new, open_=new != "ok"))
        self._post(alerts)

    def refresh(self, messages: Sequence[Mapping[str, Any]]) -> None:
        """Report that these still fire, also to a restarted one; DeliveryError: it cannot be reached."""
        self._post([self._alert(m, str(m["level"]), open_=True) for m in messages])

    def _alert(self, message: Mapping[str, Any], level: str, *, open_: bool) -> dict[str, Any]:
        now = datetime.now(timezone.utc)
        at = message.get("since") or message.get("at")
        started = datetime.fromisoformat(at) if at else now
        ends = now + timedelta(seconds=REFRESH_SECONDS * LIFE_REFRESHES) if open_ else now
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
            # An alert that ends before it starts is rejected; the clock may have been set back meanwhile.
            "startsAt": min(started, ends).isoformat(timespec="milliseconds"),
            "endsAt": ends.isoformat(timespec="milliseconds"),
        }

    def _post(self, alerts: list[dict[str, Any]]) -> None:
        data, headers = json.dumps(alerts).encode(), {"Content-Type": "application/json"}
        try:
            http_client.exchange(self._address, data, headers, deadline_seconds=self._timeout, max_bytes=_MAX_BYTES)
        except http_client.ErrorStatus as refused:
            # 400 concerns this message; anything else may be fixed at the other end
            raise DeliveryError(cause(refused), permanent=refused.status == 400) from refused
        except http_client.Unreachable as error:
            raise DeliveryError(say("cannot be reached: {why}", why=cause(error))) from error
