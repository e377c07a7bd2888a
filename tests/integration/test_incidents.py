"""What somebody sees who asks what happened: the real daemon, killed, and the commands after it."""

from __future__ import annotations

import json
import signal
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.integration.test_daemon import samples_in
from tests.support.daemons import daemon, eventually, wslgpud
from tests.support.receivers import webhook


def ask(home: Path, *arguments: str) -> list | dict:
    done = wslgpud(*arguments, "--json", "--state", str(home / "state"), home=home)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def unclean(incidents: list[dict]) -> dict | None:
    """Return the one that is ours: the kernel's log, and so its kills, are shared with other tests."""
    return next((i for i in incidents if i["rule"] == "unclean_end"), None)


@pytest.mark.slow
def test_a_killed_daemon_says_so_and_reports_the_minutes_before(tmp_path: Path) -> None:
    settings = {"WSLGPUD_STORE__COMMIT_SECONDS": "1", "WSLGPUD_SAMPLING__INTERVAL_SECONDS": "0.2"}
    with daemon(tmp_path, settings=settings) as running:
        written = eventually(
            lambda: (found := samples_in(running.database)) and found[-1] - found[0] > 5 and found, "minutes"
        )
        running.end(signal.SIGKILL)
    with daemon(tmp_path, settings=settings) as running:
        incident = eventually(lambda: unclean(running.status().get("incidents", [])), "the incident")
        series = 'wslgpud_alert_level{resource="daemon",rule="unclean_end"}'
        eventually(lambda: running.samples().get(series) in {1, 2}, "the metric")
        running.end()
    listed = unclean(ask(tmp_path, "incidents"))
    report = ask(tmp_path, "incidents", str(listed["id"]))
    picture = tmp_path / "incident.png"
    shown = wslgpud(
        "incidents", str(listed["id"]), "--plot", str(picture), "--state", str(running.state), home=tmp_path
    )

    # Worth a warning if the kernel has killed somebody of another test just before.
    assert (incident["rule"], incident["level"] in {"info", "warning"}) == ("unclean_end", True)
    assert listed["headline"].startswith("wslgpud was killed at ")
    curve = next(h for h in report["headroom"] if h["resource"] == "ram")
    # A point stands at the beginning of its 2.2 s (660 s in 300 points).
    assert curve["points"][-1][0] >= written[-1] - 2.3, "the minutes before the end, up to it"
    assert len(curve["points"]) >= 2
    assert "RAM: used of" in shown.stdout
    assert "Last sample before the end" in shown.stdout
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_an_unknown_incident_and_a_missing_daemon_are_named(tmp_path: Path) -> None:
    with daemon(tmp_path) as running:
        eventually(lambda: running.status_of("/-/ready") == 200, "readiness")
        running.end()
    missing = wslgpud("incidents", "12345", "--state", str(running.state), home=tmp_path)
    nowhere = wslgpud("incidents", "--state", str(tmp_path / "none"), home=tmp_path)

    assert (missing.returncode, missing.stderr) == (
        2,
        "wslgpud: there is no incident 12345; 'wslgpud incidents' lists them\n",
    )
    assert nowhere.returncode == 2
    assert len(nowhere.stderr.splitlines()) == 1


@pytest.mark.parametrize("option", [("--since", "7d"), ("--all",)], ids=" ".join)
def test_what_chooses_from_the_list_is_refused_beside_a_number(tmp_path: Path, option: tuple[str, ...]) -> None:
    refused = wslgpud("incidents", "7", *option, home=tmp_path)

    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr == (
        "wslgpud: --since, --until and --all choose what is listed: leave them out, or the number 7\n"
    )


def test_alerts_test_says_which_channel_took_the_message(tmp_path: Path) -> None:
    with webhook() as server:
        url = server.url.replace("http://", "json://")
        settings = {"WSLGPUD_ALERTS__URLS": url, "WSLGPUD_ALERTS__COMMAND": "/bin/false"}
        done = wslgpud("alerts", "test", home=tmp_path, settings=settings)

    assert done.returncode == 1
    took, failed = done.stdout.splitlines()
    assert "accepted it (gets warning and worse)" in took
    assert "failed: /bin/false ended with status 1" in failed
    assert server.got[0]["title"] == "Test message from wslgpud: alerts arrive here"


@pytest.mark.slow
def test_silences_and_acknowledgements_are_kept_and_listed(tmp_path: Path) -> None:
    with daemon(tmp_path) as running:
        eventually(lambda: running.status_of("/-/ready") == 200, "readiness")
        running.end(signal.SIGKILL)
    state = ("--state", str(running.state))
    with daemon(tmp_path) as running:
        incident = eventually(lambda: unclean(running.status().get("incidents", [])), "the incident")
        number = str(incident["id"])
        said = wslgpud("alerts", "silence", "unclean_end", "--for", "2h", "--resource", "daemon", *state, home=tmp_path)
        acknowledged = wslgpud("alerts", "ack", number, *state, home=tmp_path)
        listed = ask(tmp_path, "alerts", "list")
        shown = eventually(lambda: (i := unclean(running.status()["incidents"]))["acknowledged"] and i, "the next tick")
        wslgpud("alerts", "silence", "unclean_end", "--for", "0", "--resource", "daemon", *state, home=tmp_path)
        running.end()
    wrong = wslgpud("alerts", "silence", "swap_trash", *state, home=tmp_path)
    nobody = wslgpud("alerts", "ack", "77777", *state, home=tmp_path)

    assert said.stdout == "unclean_end of daemon: silent for 2 h\n"
    assert acknowledged.stdout.startswith(f"incident {number} is acknowledged: wslgpud was killed at ")
    (silence,) = listed["silences"]
    assert (silence["rule"], silence["resource"]) == ("unclean_end", "daemon")
    assert 7100 < silence["until_seconds"] <= 7200
    assert unclean(listed["open"])["acknowledged"] is True
    assert (shown["acknowledged"], "silenced_until" in shown) == (True, True)
    assert [note.partition(" until ")[0] for note in shown["notes"]] == ["acknowledged", "silenced"]
    assert ask(tmp_path, "alerts", "list")["silences"] == []
    assert "there is no rule swap_trash" in wrong.stderr
    assert nobody.stderr == "wslgpud: there is no incident 77777; 'wslgpud incidents' lists them\n"


@pytest.mark.slow
def test_every_rule_can_be_explained_where_it_is_needed(tmp_path: Path) -> None:
    one = wslgpud("alerts", "explain", "vram_spill", home=tmp_path).stdout
    all_ = wslgpud("alerts", "explain", home=tmp_path).stdout
    none = wslgpud("alerts", "explain", "nothing", home=tmp_path)

    assert one.startswith("vram_spill\nThe card is full and Windows moves its memory into RAM")
    assert one in all_ + "\n"
    assert all_.count("\n\n") >= 15
    assert (none.returncode, "there is no rule nothing; there are: memory_exhaustion" in none.stderr) == (2, True)


@pytest.mark.slow
def test_a_warning_outlasts_a_killed_daemon_until_delivered(tmp_path: Path) -> None:
    """The row and the message are on disk before any channel is asked; the channel comes back a run later."""
    with webhook() as server:
        server.mood = "refuse"
        settings = {
            "WSLGPUD_ALERTS__URLS": server.url.replace("http://", "json://"),
            "WSLGPUD_ALERTS__MINIMUM_LEVEL": "info",
        }
        for _ in range(2):
            with daemon(tmp_path, settings=settings) as running:
                eventually(lambda: running.status_of("/-/ready") == 200, "readiness")
                running.end(signal.SIGKILL)
        with daemon(tmp_path, settings=settings) as running:
            eventually(lambda: server.asked, "a try")
            assert server.got == []
            running.end(signal.SIGKILL)
        server.mood = "take"
        with daemon(tmp_path, settings=settings) as running:
            eventually(lambda: server.got, "the message")
            eventually(
                lambda: (
                    running.samples().get(f'wslgpud_alert_deliveries_waiting{{channel="{channel(running.database)}"}}')
                    == 0
                ),
                "an empty outbox",
            )
            running.end()

    assert "wslgpud was killed at" in "".join(m["title"] + m["message"] for m in server.got)


def channel(database: Path) -> str:
    with closing(sqlite3.connect(database)) as connection:
        (name,) = connection.execute("select distinct channel from outbox").fetchone()
    return name
