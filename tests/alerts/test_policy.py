"""People are left alone when they want it, and never flooded; what matters most always comes."""

from __future__ import annotations

import time
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wslgpud.alerts.channels.programs import DesktopChannel, ToastChannel
from wslgpud.alerts.dispatcher import SendPolicy, build_channels, digest, level_of, quiet_hours, second_of_day
from wslgpud.config import Alerts, ConfigError
from wslgpud.host import Host
from wslgpud.model import Level
from wslgpud.words import ENGLISH, translator
from wslgpud.words.moments import iso, local_time

DAY = 86400.0


@pytest.mark.parametrize(("hour", "left"), [(21.9, 0), (22, 9), (23, 8), (0, 7), (6.5, 0.5), (7, 0), (12, 0)])
def test_quiet_hours_reach_over_midnight(hour: float, left: float) -> None:
    assert manners().wait(Level.WARNING, hour * 3600, 0.0) == pytest.approx(left * 3600)


@given(st.integers(0, int(DAY) - 1), st.integers(0, 1439), st.integers(0, 1439))
def test_quiet_hours_end_when_they_say(second: int, start: int, end: int) -> None:
    hours = f"{start // 60}:{start % 60:02}-{end // 60}:{end % 60:02}"
    policy = SendPolicy(Alerts(quiet_hours=hours), day=lambda wall: wall % DAY)
    left = policy.wait(Level.WARNING, second, 0.0)

    assert 0 <= left <= DAY
    assert policy.wait(Level.WARNING, second + left, 0.0) == 0


def test_quiet_hours_are_read_to_the_minute() -> None:
    assert quiet_hours("22:30-07:15") == (22.5 * 3600, 7.25 * 3600)
    assert quiet_hours("") is None


@pytest.mark.parametrize("text", ["22-7", "25:00-07:00", "22:00-07:60", "night"])
def test_hours_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="like 22:00-07:00"):
        quiet_hours(text)


def manners(per_hour: int = 100) -> SendPolicy:
    settings = Alerts(quiet_hours="22:00-07:00", quiet_level="critical", messages_per_hour=per_hour)
    return SendPolicy(settings, day=lambda wall: wall % DAY)


def test_quiet_hours_and_messages_follow_the_local_time_zone() -> None:
    noon_utc = 1_800_014_400.0
    with pytest.MonkeyPatch.context() as patch:
        seen = []
        for zone in ("UTC0", "XXX-9", "YYY5"):
            patch.setenv("TZ", zone)
            seen.append((local_time(iso(noon_utc)), second_of_day(noon_utc) / 3600))
    time.tzset()

    assert seen == [(f"2027-01-15 {hour:02}:00:00", hour) for hour in (12, 21, 7)]


def test_in_quiet_hours_only_what_is_bad_enough_comes() -> None:
    midnight = 10 * DAY

    assert manners().wait(Level.WARNING, midnight, 0.0) == 7 * 3600
    assert manners().wait(Level.CRITICAL, midnight, 0.0) == 0
    assert manners().wait(Level.WARNING, midnight + 12 * 3600, 0.0) == 0


def test_alerts_over_the_hourly_limit_wait_except_emergencies() -> None:
    polite, noon = manners(per_hour=2), 12 * 3600.0
    polite.sent(100.0)
    polite.sent(200.0)

    assert polite.wait(Level.CRITICAL, noon, 300.0) == 3400.0
    assert polite.wait(Level.EMERGENCY, noon, 300.0) == 0
    assert polite.wait(Level.CRITICAL, noon, 3701.0) == 0


def test_what_piled_up_is_one_message_with_the_worst_first() -> None:
    messages = [
        {"headline": f"alert {n}", "at": f"2026-11-21T0{n}:00:00+00:00", "level": level, "previous_level": "ok"}
        for n, level in enumerate(["warning", "critical", "ok"])
    ]
    joined = digest(messages, ENGLISH)
    times = [datetime.fromisoformat(m["at"]).astimezone() for m in messages]

    assert joined["headline"] == "3 alerts: alert 1"
    assert joined["evidence"].splitlines() == [f"{at:%Y-%m-%d %H:%M:%S}  alert {n}" for n, at in enumerate(times)]
    assert level_of(joined) == Level.CRITICAL
    assert digest(messages[:1], ENGLISH) == messages[0]
    assert len(digest(messages * 4, ENGLISH)["evidence"].splitlines()) == 12
    first, *others = digest(messages * 100, translator("zh"))["evidence"].splitlines()
    assert (first, len(others), others[-1]) == ("... 288", 12, f"{times[2]:%Y-%m-%d %H:%M:%S}  alert 2")


@pytest.mark.parametrize(("length", "counted"), [(90, True), (91, False)])
def test_a_digest_headline_starts_with_the_count_if_it_fits(length: int, counted: bool) -> None:
    messages = [{"headline": "x" * length, "level": "warning"}] * 2

    assert digest(messages, ENGLISH)["headline"] == "2 alerts: " * counted + "x" * length


@pytest.mark.parametrize(
    ("toast", "desktop", "names"),
    [
        ("auto", "auto", ["windows_toast"]),
        ("off", "auto", ["desktop"]),
        ("off", "off", []),
        ("auto", "on", ["windows_toast", "desktop"]),
    ],
)
def test_desktop_alerts_are_optional_where_windows_shows_toasts(
    toast: str, desktop: str, names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for channel in (ToastChannel, DesktopChannel):
        monkeypatch.setattr(channel, "available", lambda _: True)
    found = build_channels(Alerts(windows_toast=toast, desktop=desktop), Host(), {})

    assert [channel.name for channel in found] == names
