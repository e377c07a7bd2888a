"""Every channel delivers its message, whatever programs are called, and reports what went wrong."""

from __future__ import annotations

import base64
import json
import logging
import os
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from tests.alerts.ticks import START
from tests.support.daemons import PATIENCE_SECONDS, eventually
from tests.support.receivers import smtp, webhook
from tests.support.servers import alertmanager, free_port
from wslgpud.alerts import dispatcher
from wslgpud.alerts.channels import DeliveryError
from wslgpud.alerts.channels.alertmanager import AlertmanagerChannel
from wslgpud.alerts.channels.apprise import AppriseChannel, understood, urls_from
from wslgpud.alerts.channels.programs import SCRIPT, DesktopChannel, ToastChannel
from wslgpud.config import Alerts, ConfigError
from wslgpud.host import Host
from wslgpud.probes import interop
from wslgpud.probes.interop import automount_root
from wslgpud.words.moments import iso

HOSTILE = [
    'it\'s "quoted" `whoami` $(calc.exe); & | < > %PATH% !x!',
    "line\nbreak\r\n'; Start-Process calc #",
    "</text><action/>&amp;]]><!--",
    "训练 🔥 \u202egnp.exe",
    "x" * 4096,
    "-EncodedCommand",
    "",
]


def message(headline: str = "RAM full", **more: Any) -> dict[str, Any]:
    return {
        "at": iso(START),
        "since": iso(START),
        "incident": 12,
        "rule": "oom_kill",
        "resource": "ram",
        "level": "critical",
        "previous_level": "ok",
        "host": "pc",
        "headline": headline,
        "evidence": "because",
        "advice": "do this",
        **more,
    }


def executable(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


class TestWindowsToast:
    """A stand-in for powershell.exe writes down all that it got; no Windows takes part."""

    def channel(self, root: Path, script: str = "", timeout: float = PATIENCE_SECONDS, **environ: str) -> ToastChannel:
        recorder = (
            '#!/bin/sh\nout="$(dirname "$0")/got"\nprintf "%s\\n" "$@" > "$out.args"\n'
            'pwd > "$out.cwd"\nenv > "$out.env"\ncat > "$out.stdin"\n'
        )
        executable(root / "mnt/c/Windows/System32/WindowsPowerShell/v1.0/powershell.exe", recorder + script)
        (root / "dev").mkdir(exist_ok=True)
        (root / "dev/dxg").touch()
        return ToastChannel(Host(root), {**os.environ, **environ}, timeout)

    def got(self, root: Path, what: str) -> str:
        return (root / f"mnt/c/Windows/System32/WindowsPowerShell/v1.0/got.{what}").read_text()

    @pytest.mark.parametrize("text", HOSTILE)
    def test_no_text_reaches_the_command_line_and_all_of_it_arrives(self, tmp_path: Path, text: str) -> None:
        channel = self.channel(tmp_path)
        channel.send(message(text))

        *options, script = self.got(tmp_path, "args").splitlines()
        assert options == interop.powershell_command(Host(tmp_path), "")[1:-1]
        assert base64.b64decode(script).decode("utf-16-le") == interop.framed(SCRIPT)
        stdin = self.got(tmp_path, "stdin")
        assert stdin.count("\n") == 1
        toast = json.loads(base64.b64decode(stdin))
        assert toast["urgent"] is True
        assert toast["tag"] == "12"
        assert "because" in toast["body"]
        shown = " ".join(text.replace("\u202e", " ").split())
        assert toast["title"] == (shown if len(shown) <= 120 else shown[:119] + "…")
        assert not any(ord(c) < 32 for c in toast["title"] + toast["body"])

    def test_it_runs_on_the_windows_disk_without_a_stale_socket(self, tmp_path: Path) -> None:
        self.channel(tmp_path, WSL_INTEROP="/run/WSL/999_interop").send(message())

        assert self.got(tmp_path, "cwd").strip() == str(tmp_path / "mnt/c")
        assert "WSL_INTEROP" not in self.got(tmp_path, "env")

    def test_interop_that_hangs_is_ended_with_its_children(self, tmp_path: Path) -> None:
        channel = self.channel(tmp_path, "sleep 600 & wait\n", timeout=0.5)

        with pytest.raises(DeliveryError, match=r"did not end within 1 s"):
            channel.send(message())

    def test_a_failure_says_what_powershell_said(self, tmp_path: Path) -> None:
        with pytest.raises(DeliveryError, match=r"failed \(1\): Access is denied"):
            self.channel(tmp_path, "echo Access is denied >&2; exit 1\n").send(message())

    def test_while_windows_drive_is_away_it_waits_for_it(self, tmp_path: Path) -> None:
        channel = self.channel(tmp_path)
        (tmp_path / "mnt").rename(tmp_path / "away")

        with pytest.raises(DeliveryError, match=r"cannot start .*powershell\.exe") as caught:
            channel.send(message())
        assert not caught.value.permanent

    def test_it_is_there_only_under_wsl_with_windows_drive(self, tmp_path: Path) -> None:
        assert self.channel(tmp_path / "wsl").available()
        assert not ToastChannel(Host(tmp_path), {}).available()

    @pytest.mark.parametrize(
        ("conf", "root"),
        [
            ("[automount]\nroot = /win/ # mine", "/win/"),
            ('[Automount]\nRoot="/w"', "/w/"),
            ("[user]\nroot = /win", "/mnt/"),
        ],
    )
    def test_drives_mounted_elsewhere_are_found(self, tmp_path: Path, conf: str, root: str) -> None:
        (tmp_path / "etc").mkdir()
        (tmp_path / "etc/wsl.conf").write_text(conf)

        assert automount_root(Host(tmp_path)) == root


class TestDesktop:
    @pytest.fixture
    def notify(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        out = tmp_path / "got"
        executable(
            tmp_path / "bin/notify-send", f'#!/bin/sh\nprintf "%s\\0" "$DBUS_SESSION_BUS_ADDRESS" "$@" >> {out}\n'
        )
        monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
        return out

    @pytest.mark.parametrize("text", HOSTILE)
    def test_texts_are_arguments_behind_the_options(self, notify: Path, text: str) -> None:
        text = text.replace("\0", "")
        DesktopChannel({**os.environ, "DBUS_SESSION_BUS_ADDRESS": "unix:path=/x"}).send(message(text))

        bus, urgency, app, dashes, title, body, _ = notify.read_bytes().decode().split("\0")
        assert (bus, urgency, app, dashes) == ("unix:path=/x", "--urgency=critical", "--app-name=wslgpud", "--")
        assert title == text
        assert "because" in body

    def test_a_system_service_finds_the_sessions_of_users(self, notify: Path, tmp_path: Path) -> None:
        me = os.geteuid()
        (tmp_path / f"run/{me}").mkdir(parents=True)
        (tmp_path / f"run/{me}/bus").touch()
        environ = {k: v for k, v in os.environ.items() if k != "DBUS_SESSION_BUS_ADDRESS"}
        channel = DesktopChannel(environ, tmp_path / "run")

        assert channel.available()
        channel.send(message())
        assert notify.read_text().startswith(f"unix:path={tmp_path}/run/{me}/bus\0")

    def test_without_a_session_it_waits_for_one(self, notify: Path, tmp_path: Path) -> None:
        with pytest.raises(DeliveryError, match="there is no desktop session") as caught:
            DesktopChannel({}, tmp_path / "none").send(message())
        assert not caught.value.permanent


class TestApprise:
    @pytest.mark.slow
    def test_a_mail_arrives_and_a_failing_server_is_retried(self) -> None:
        with smtp() as (mailbox, port):
            address = f"mailto://127.0.0.1:{port}?from=gpu@example.org&to=me@example.org&mode=insecure"
            channel = AppriseChannel(address, PATIENCE_SECONDS)
            channel.send(message("显存将满 <b>&"))
            (mail,) = mailbox.mails
            assert mail["Subject"].endswith("显存将满 \u2039b\u203a&")
            assert "do this" in mail.get_body(("plain", "html")).get_content()
            mailbox.mood = "refuse"
            with pytest.raises(DeliveryError) as refused:
                channel.send(message())
        with pytest.raises(DeliveryError) as gone:
            channel.send(message())

        assert not refused.value.permanent
        assert not gone.value.permanent

    @pytest.mark.slow
    def test_a_failing_webhook_loses_no_message_and_leaks_no_secret(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.DEBUG)
        with webhook() as server:
            secret = "s3cr3t-token"
            url = server.url.replace("http://", f"json://me:{secret}@")
            channel = AppriseChannel(f"{url}?rto=180&cto=180", PATIENCE_SECONDS)
            hasty = AppriseChannel(f"{url}?rto=0.5&cto=180", PATIENCE_SECONDS)
            errors = []
            for mood, asked in (("refuse", channel), ("hang", hasty)):
                server.mood = mood
                with pytest.raises(DeliveryError) as caught:
                    asked.send(message())
                errors.append(str(caught.value))
            server.stop()
            with pytest.raises(DeliveryError) as caught:
                channel.send(message())
            server.mood = "take"
            server.start()
            channel.send(message("here again"))

        assert [m["title"] for m in server.got] == ["here again"]
        assert server.got[0]["type"] == "failure"
        told = caplog.text + channel.name + "".join([*errors, str(caught.value)])
        assert secret not in told
        assert "me:" not in told

    @pytest.mark.slow
    def test_urls_may_come_from_a_file_and_bad_ones_are_not_shown(self, tmp_path: Path) -> None:
        file = tmp_path / "urls"
        file.write_text("# mine\n\njson://127.0.0.1/a\n")
        assert urls_from(("json://127.0.0.1/b",), str(file)) == ["json://127.0.0.1/b", "json://127.0.0.1/a"]

        with pytest.raises(ConfigError, match="of the kind nonsense://") as caught:
            understood(["json://127.0.0.1/a", "nonsense://user:hunter2@host"])
        assert "hunter2" not in str(caught.value)
        with pytest.raises(ConfigError, match="cannot read"):
            urls_from((), str(tmp_path / "none"))


@pytest.mark.servers
class TestAlertmanager:
    def test_a_real_alert_fires_escalates_outlives_restart_resolves(self, tmp_path: Path) -> None:
        port = free_port()

        def sent(status: str, severity: str) -> list[dict[str, Any]]:
            alerts = [a for got in server.got for a in got["alerts"]]
            return [a for a in alerts if (a["status"], a["labels"]["severity"]) == (status, severity)]

        since = (datetime.now(timezone.utc) - timedelta(seconds=30)).isoformat()
        with webhook() as server:
            channel = AlertmanagerChannel(f"http://127.0.0.1:{port}/")
            with alertmanager(tmp_path, server.url, port) as real:
                channel.send(message(level="warning", since=since))
                eventually(lambda: sent("firing", "warning"), "a notification")
                channel.send(message(level="critical", previous_level="warning", since=since))
                eventually(lambda: sent("resolved", "warning"), "the end of the milder one")
                eventually(lambda: sent("firing", "critical"), "the worse one")
                assert [a["labels"]["severity"] for a in real.alerts()] == ["critical"]
            with pytest.raises(DeliveryError, match="cannot be reached"):
                channel.refresh([message(since=since)])
            with alertmanager(tmp_path, server.url, port) as real:
                before = datetime.now(timezone.utc)
                channel.refresh([message(since=since)])
                after = datetime.now(timezone.utc)
                (alert,) = eventually(real.alerts, "the alert after a restart")
                channel.send(message(level="ok", previous_level="critical", since=since))
                eventually(lambda: sent("resolved", "critical"), "the end")

        assert alert["labels"] == {
            "alertname": "WslgpudOomKill",
            "resource": "ram",
            "severity": "critical",
            "instance": "pc",
            "job": "wslgpud",
        }
        assert alert["annotations"] == {
            "summary": "RAM full",
            "description": "because",
            "advice": "do this",
            "incident": "12",
        }
        assert alert["startsAt"][:19] == since[:19]
        ends = datetime.fromisoformat(alert["endsAt"].replace("Z", "+00:00"))
        assert before + timedelta(seconds=180) < ends < after + timedelta(seconds=400)

    def test_a_message_it_cannot_understand_is_not_tried_for_ever(self, tmp_path: Path) -> None:
        with webhook() as server, alertmanager(tmp_path, server.url) as real:
            channel = AlertmanagerChannel(real.url)
            with pytest.raises(DeliveryError, match="answered 400") as caught:
                channel._post([{"labels": {}}])
            # A clock that was set back must not make an alert that ends before it starts.
            ahead = (datetime.now(timezone.utc) + timedelta(days=2)).isoformat()
            channel.send(message(level="ok", previous_level="critical", since=ahead))

        assert caught.value.permanent


def test_an_alertmanager_url_hides_passwords_and_must_be_http() -> None:
    assert AlertmanagerChannel("https://me:hunter2@am.example.org/path").name == "alertmanager-am.example.org"
    with pytest.raises(ConfigError) as caught:
        AlertmanagerChannel("ftp://me:hunter2@x")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("url", ["http://127.0.0.1:9093x", "http://[::1", "127.0.0.1:9093", "http://:9093"])
def test_a_bad_alertmanager_url_gives_an_error_not_a_traceback(url: str) -> None:
    with pytest.raises(ConfigError, match=r"alerts\.alertmanager_urls must hold addresses"):
        AlertmanagerChannel(url)


class TestConfiguration:
    def built(self, **settings: Any) -> list[str]:
        return [c.name for c in dispatcher.build_channels(Alerts(**settings), Host("/nowhere"), {})]

    def test_without_any_on_a_plain_machine_there_is_no_channel(self) -> None:
        assert self.built() == []

    def test_names_are_stable_and_tell_no_secret(self) -> None:
        names = self.built(
            urls=("json://u:hunter2@127.0.0.1/",),
            alertmanager_urls=("http://127.0.0.1:9093",),
            command=("true",),
            windows_toast="on",
            desktop="on",
        )

        assert names[:2] == ["windows_toast", "desktop"]
        assert names[2].startswith("json-")
        assert names[3:] == ["alertmanager-127.0.0.1:9093", "command"]
        assert "hunter2" not in "".join(names)

    def test_a_level_for_an_absent_channel_is_fine_unless_it_is_off(self) -> None:
        levels = ("windows_toast=critical", "desktop=critical")

        assert self.built(channel_levels=levels) == []
        with pytest.raises(ConfigError, match="no channel desktop, windows_toast"):
            self.built(channel_levels=levels, windows_toast="off", desktop="off")

    @pytest.mark.parametrize(
        ("settings", "complaint"),
        [
            ({"channel_levels": ("sms=critical",)}, "no channel sms"),
            ({"channel_levels": ("command",)}, "entries like windows_toast=critical"),
            ({"alertmanager_urls": ("http://a:1", "http://a:1")}, "alertmanager-a:1 is configured twice"),
        ],
    )
    def test_a_mistake_is_named(self, settings: dict[str, Any], complaint: str) -> None:
        with pytest.raises(ConfigError, match=complaint):
            self.built(**settings)
