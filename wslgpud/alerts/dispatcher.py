"""Builds the channels, and delivers messages from the outbox to them: at least once, in order, never delaying a tick.

Channels for people wait during quiet hours, and have a limit of messages per hour.
"""

from __future__ import annotations

import heapq
import logging
import re
import socket
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from wslgpud import words
from wslgpud.alerts.channels import Channel, DeliveryError, Payload, shown
from wslgpud.alerts.channels.alertmanager import AlertmanagerChannel
from wslgpud.alerts.channels.apprise import AppriseChannel, understood, urls_from
from wslgpud.alerts.channels.programs import CommandChannel, DesktopChannel, ToastChannel
from wslgpud.alerts.messages import Text, payload
from wslgpud.config import Alerts, ConfigError
from wslgpud.host import Clock, Host
from wslgpud.model import Level, Transition
from wslgpud.store import Delivery, Outbox
from wslgpud.words import ENGLISH, HEADLINE_CHARACTERS, MessageLike, Translator, cause, say
from wslgpud.words.moments import local_time

log = logging.getLogger(__name__)

#: seconds before the next try after 1, 2, ... failures in a row
BACK_OFF_SECONDS = (1.0, 5.0, 15.0, 60.0, 300.0)
#: queued messages per channel; beyond that, the least important are dropped, oldest first
MAX_WAITING = 500
#: the end of quiet hours is checked at least this often: the wall clock may be set meanwhile
RECHECK_SECONDS = 60.0
#: lines of a digest; the rest is only counted
MAX_LINES = 12
_HOUR = 3600.0
_DAY = 24 * _HOUR
_QUIET = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)-([01]?\d|2[0-3]):([0-5]\d)")


def build_channels(settings: Alerts, host: Host, environ: Mapping[str, str]) -> list[Channel]:
    """Return the configured and the automatic channels; ConfigError: one cannot be used."""
    found: list[Channel] = []
    toast, desktop = ToastChannel(host, environ), DesktopChannel(environ)
    if settings.windows_toast == "on" or (settings.windows_toast == "auto" and host.live and toast.available()):
        found.append(toast)
    # Under WSL no desktop shows notifications; Windows does.
    local = host.live and not found and desktop.available()
    if settings.desktop == "on" or (settings.desktop == "auto" and local):
        found.append(desktop)
    found += configured(settings)
    names = [channel.name for channel in found]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ConfigError("alerts: {names} is configured twice", names=tuple(sorted(twice)))
    if unknown := lowest_levels(settings).keys() - {*names, *optional_channels(settings)}:
        told = {"names": tuple(sorted(unknown)), "known": tuple(names) or say("none")}
        raise ConfigError("alerts.channel_levels: no channel {names}; there are: {known}", **told)
    return found


def configured(settings: Alerts) -> list[Channel]:
    """Return the explicitly configured channels; raises like ``build_channels``."""
    lowest_levels(settings)
    quiet_hours(settings.quiet_hours)  # validate even without a channel for people
    urls = urls_from(settings.urls, settings.urls_file)
    understood(urls)
    found: list[Channel] = [AppriseChannel(url) for url in urls]
    found += [AlertmanagerChannel(url) for url in settings.alertmanager_urls]
    if settings.command:
        found.append(CommandChannel(settings.command, settings.command_timeout_seconds))
    return found


def optional_channels(settings: Alerts) -> set[str]:
    """Return the channels that are used if available; Windows' drive is not available at every boot.

    https://github.com/microsoft/WSL/issues/4226
    """
    automatic = {ToastChannel.name: settings.windows_toast, DesktopChannel.name: settings.desktop}
    return {name for name, use in automatic.items() if use == "auto"}


def lowest_levels(settings: Alerts) -> defaultdict[str, Level]:
    """Return the lowest level of each channel; ConfigError where one is not given as ``name=level``."""
    found = defaultdict(lambda: Level[settings.minimum_level.upper()])
    for entry in settings.channel_levels:
        name, _, level = entry.partition("=")
        if level.upper() not in Level.__members__ or not name:
            raise ConfigError(
                "alerts.channel_levels must hold entries like windows_toast=critical, not {entry}", entry=repr(entry)
            )
        found[name] = Level[level.upper()]
    return found


def quiet_hours(text: str) -> tuple[float, float] | None:
    """Parse ``22:00-07:00`` as seconds since local midnight; empty means none, anything else is a ConfigError."""
    if not text:
        return None
    match = _QUIET.fullmatch(text.strip())
    if match is None:
        raise ConfigError("alerts.quiet_hours must be like 22:00-07:00, not {text}", text=repr(text))
    start_hour, start_minute, end_hour, end_minute = map(int, match.groups())
    return start_hour * _HOUR + start_minute * 60, end_hour * _HOUR + end_minute * 60


def second_of_day(wall: float) -> float:
    """Return the seconds since local midnight; the time zone may change at run time."""
    time.tzset()  # else the zone of our start would be used forever
    local = time.localtime(wall)
    return local.tm_hour * _HOUR + local.tm_min * 60.0 + local.tm_sec


def rendered(message: Payload, translator: Translator, number: int | None = None) -> dict[str, Any]:
    """Return a queued message, rendered in a language, for people and programs.

    ``number`` is that of its row: a message that opens an incident does not know it while it is queued.
    """
    message = message if number is None else {"incident": number, **message}
    names = {"message": "headline", **{name: name for name in ("evidence", "advice", "who", "reason")}}
    said: dict[str, Any] = {name: words.from_json(message[of]) for of, name in names.items() if of in message}
    if "facts" in message:
        said["facts"] = shown(words.facts_from_json(message["facts"]), translator)
    return {**message, **translator.document(said)}


def level_of(message: Payload) -> Level:
    """Return the level of a message; of an all-clear, the previous level."""
    return max(Level[str(message.get(name, "ok")).upper()] for name in ("level", "previous_level"))


def digest(messages: Sequence[Payload], translator: Translator) -> dict[str, Any]:
    """Return several rendered messages as one: the worst first, then one line for each other, oldest first."""
    if len(messages) == 1:
        return dict(messages[0])
    worst = max(messages, key=lambda m: (Level[str(m.get("level", "ok")).upper()], m.get("at", "")))
    lines = [f"{local_time(m.get('at', ''))}  {m.get('headline', '')}" for m in messages[-MAX_LINES:]]
    if len(messages) > MAX_LINES:
        lines.insert(0, f"... {len(messages) - MAX_LINES}")
    counted = translator.t("{count} alerts: {headline}", count=len(messages), headline=str(worst.get("headline", "")))
    headline = {"headline": counted} if len(counted) <= HEADLINE_CHARACTERS else {}
    return {**worst, **headline, "evidence": "\n".join(lines), "count": len(messages)}


def trial(wall: float, command: str) -> dict[str, Any]:
    """Return a rendered message to test a channel, which names the command that sent it."""
    sent_by = say("Sent by '{command}'. Nothing is wrong.", command=command)
    text = Text(say("Test message from wslgpud: alerts arrive here"), (sent_by,))
    row = Transition(wall, 0.0, "test", "test", Level.OK, Level.OK)
    return rendered(payload(row, text, host=socket.gethostname()), words.current())


class SendPolicy:
    def __init__(self, settings: Alerts, day: Callable[[float], float] = second_of_day) -> None:
        """Start with nothing sent; raises like ``quiet_hours``."""
        self._quiet, self._quiet_level = quiet_hours(settings.quiet_hours), Level[settings.quiet_level.upper()]
        self._per_hour, self._day = settings.messages_per_hour, day
        self._sent: deque[float] = deque()

    def wait(self, worst: Level, wall: float, mono: float) -> float:
        """Return how long messages up to this level must wait: 0 to send now, as always for an emergency."""
        if worst >= Level.EMERGENCY:
            return 0.0
        left = 0.0
        if self._quiet is not None and worst < self._quiet_level:
            start, end = self._quiet  # it may span midnight
            left = max(0.0, (end - start) % _DAY - (self._day(wall) - start) % _DAY)
        while self._sent and mono - self._sent[0] >= _HOUR:
            self._sent.popleft()
        if len(self._sent) >= self._per_hour:
            left = max(left, self._sent[0] + _HOUR - mono)
        return left

    def sent(self, mono: float) -> None:
        self._sent.append(mono)


@dataclass
class Dispatcher:
    """A thread for each channel, so that a hung one does not delay others; ``wake`` signals new messages.

    ``reminders`` returns the messages of open incidents for a channel that needs them repeated (Alertmanager), by its
    name.
    """

    channels: Sequence[Channel]
    outbox: Outbox
    clock: Clock
    settings: Alerts = field(default_factory=Alerts)
    translator: Translator = ENGLISH
    reminders: Callable[[str], Sequence[Payload]] = lambda _: ()
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._workers = [_ChannelWorker(channel, self) for channel in self.channels]

    def start(self) -> None:
        for worker in self._workers:
            worker.thread.start()

    def wake(self) -> None:
        for worker in self._workers:
            worker.wake.set()

    def close(self, timeout_seconds: float) -> None:
        """Stop after the current message; the rest stays in the outbox for the next run."""
        for worker in self._workers:
            worker.stopping = True
            worker.wake.set()
        for worker in self._workers:
            if worker.thread.is_alive():
                worker.thread.join(timeout_seconds / len(self._workers))

    def waiting(self) -> dict[str, int]:
        return {channel.name: len(self.outbox.unsent(channel.name)) for channel in self.channels}


class _ChannelWorker:
    def __init__(self, channel: Channel, owner: Dispatcher) -> None:
        self.wake = threading.Event()
        self.stopping = False
        self.thread = threading.Thread(target=self._work, name=f"alerts-{channel.name}", daemon=True)
        self._channel, self._owner, self._outbox, self._clock = channel, owner, owner.outbox, owner.clock
        self._policy = SendPolicy(owner.settings) if channel.human else None
        self._failures = 0
        self._not_before = 0.0
        self._refreshed = owner.clock.mono()

    def _work(self) -> None:
        while not self.stopping:
            self.wake.clear()
            try:
                pause = self._step()
            except Exception:
                # Else the thread, and so the channel, would end silently.
                log.exception("channel %s failed; please report this", self._channel.name)
                pause = RECHECK_SECONDS
            if pause is None or pause > 0:
                self.wake.wait(pause)

    def _step(self) -> float | None:
        """Do one step; return the seconds until the next, None when nothing is queued."""
        waiting = self._bounded(self._outbox.unsent(self._channel.name))
        if (pause := self._not_before - self._clock.mono()) > 0:
            return pause
        if not waiting:
            return self._refresh()
        wall, expiry = self._clock.wall(), self._owner.settings.expire_hours * _HOUR
        if wall - waiting[0].created_wall > expiry:
            self._done(waiting[:1], "expired", say("older than {expiry_seconds}", expiry_seconds=expiry))
            return 0.0
        if self._policy is None:
            return self._send(waiting[:1])
        waiting = self._latest_steps(waiting)
        worst = max(level_of(d.payload) for d in waiting)
        if (pause := self._policy.wait(worst, wall, self._clock.mono())) > 0:
            return min(pause, RECHECK_SECONDS)
        return self._send(waiting)  # accumulated messages become one: nobody reads forty

    def _bounded(self, waiting: Sequence[Delivery]) -> Sequence[Delivery]:
        """Return the messages to keep; an unbounded queue would fill memory overnight."""
        excess = len(waiting) - MAX_WAITING
        if excess <= 0:
            return waiting
        least = heapq.nsmallest(excess, waiting, key=lambda d: (level_of(d.payload), d.id))
        self._done(least, "dropped", say("more than {count} messages were waiting", count=MAX_WAITING))
        gone = {delivery.id for delivery in least}
        return [delivery for delivery in waiting if delivery.id not in gone]

    def _latest_steps(self, waiting: Sequence[Delivery]) -> Sequence[Delivery]:
        """Return the messages without those that a later step up of the same alarm has replaced."""
        kept: list[Delivery] = []
        replaced: list[Delivery] = []
        risen: set[tuple[object, object]] = set()
        for delivery in reversed(waiting):
            alarm = delivery.payload.get("rule"), delivery.payload.get("incident", delivery.transition_id)
            (replaced if alarm in risen else kept).append(delivery)
            if delivery.payload.get("kind") == "escalated":
                risen.add(alarm)
        self._done(replaced, "replaced", say("replaced by the next step of the same alarm"))
        return kept[::-1]

    def _send(self, batch: Sequence[Delivery]) -> float:
        readable = [(delivery, message) for delivery in batch if (message := self._rendered(delivery)) is not None]
        if not readable:
            return 0.0
        batch = [delivery for delivery, _ in readable]
        try:
            self._channel.send(digest([message for _, message in readable], self._owner.translator))
        except DeliveryError as error:
            log.warning("alert not sent by %s: %s", self._channel.name, error)
            return self._failed(batch, cause(error), permanent=error.permanent)
        except Exception as bug:
            # A bug in one channel must not end its thread, nor repeat every second.
            log.exception("channel %s failed; please report this", self._channel.name)
            return self._failed(batch, say("internal error: {error}", error=type(bug).__name__), permanent=False)
        self._done(batch, "sent", "")
        self._failures = 0
        if self._policy is not None:
            self._policy.sent(self._clock.mono())
        return 0.0

    def _rendered(self, delivery: Delivery) -> dict[str, Any] | None:
        """Return a message for the channel. One that cannot be rendered is given up: it would hold up all others."""
        try:
            return rendered(delivery.payload, self._owner.translator, delivery.transition_id)
        except MemoryError:  # which is when warnings are due; the next attempt may succeed
            raise
        except Exception as bug:
            log.exception("a message for %s cannot be rendered; please report this", self._channel.name)
            self._done([delivery], "refused", say("internal error: {error}", error=type(bug).__name__))
            return None

    def _failed(self, batch: Sequence[Delivery], error: MessageLike, *, permanent: bool) -> float:
        if permanent:
            self._done(batch, "refused", error)
            return 0.0
        self._owner.counts[self._channel.name, "failed"] += 1
        self._outbox.tried(batch[0].id, error, done=False)
        pause = BACK_OFF_SECONDS[min(self._failures, len(BACK_OFF_SECONDS) - 1)]
        self._failures += 1
        self._not_before = self._clock.mono() + pause
        return pause

    def _done(self, batch: Sequence[Delivery], outcome: str, error: MessageLike) -> None:
        for delivery in batch:
            self._outbox.tried(delivery.id, error, done=True)
            self._owner.counts[self._channel.name, outcome] += 1

    def _refresh(self) -> float | None:
        if (every := self._channel.refresh_seconds) is None:
            return None
        now = self._clock.mono()
        if (due := self._refreshed + every - now) > 0:
            return due
        self._refreshed = now
        if messages := [rendered(m, self._owner.translator) for m in self._owner.reminders(self._channel.name)]:
            try:
                self._channel.refresh(messages)
            except DeliveryError as error:
                log.warning("open alerts not renewed at %s: %s", self._channel.name, error)
        return every
