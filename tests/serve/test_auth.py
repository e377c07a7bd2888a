"""Passwords as other exporters have them: bcrypt, once."""

from __future__ import annotations

import asyncio
import base64
import threading

import bcrypt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.serve.support import put, receive_answer, wait_until
from wslgpud import config
from wslgpud.serve import access
from wslgpud.serve.access import Passwords, parse_basic
from wslgpud.serve.router import MAX_GUESSES, Problem, Threads

SECRET = "open sesame"


def hashed(password, cost=4):
    return bcrypt.hashpw(password.encode(), bcrypt.gensalt(cost)).decode().replace("$2b$", "$2y$")


def basic(user, password):
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


@pytest.fixture
def guarded(serve, tmp_path):
    """A server with one user, and a way to ask it with or without a password."""
    file = tmp_path / "web.yml"
    file.write_text(f"basic_auth_users:\n  prometheus: {hashed(SECRET)}\n")
    running = serve(config.Server(port=0, web_config_file=str(file)))
    running.file = file
    return running


def test_nothing_is_shown_without_a_password(guarded):
    for path in ("/", "/metrics", "/-/healthy", "/nothing-here"):
        answer = guarded.ask(path)
        assert answer.status == 401
        assert answer.getheader("WWW-Authenticate").startswith("Basic realm=")
        assert b"wslgpud_" not in answer.data


def test_the_right_password_opens(guarded):
    assert guarded.ask("/metrics", headers={"Authorization": basic("prometheus", SECRET)}).status == 200


@pytest.mark.parametrize(
    "authorization",
    [
        basic("prometheus", "wrong"),
        basic("prometheus", ""),
        basic("", SECRET),
        basic("somebody", SECRET),
        basic("prometheus", SECRET + "x"),
        "Basic",
        "Basic !!!",
        "Basic cHJvbWV0aGV1cw==",
        "Bearer " + SECRET,
        basic("prometheus", "nul\0"),
        basic("prometheus", "x" * 5000),
        "Basic /zp4",
    ],
)
def test_anything_else_does_not(guarded, authorization):
    assert guarded.ask("/metrics", headers={"Authorization": authorization}).status == 401


def test_a_changed_password_replaces_the_old_for_the_next_client(guarded):
    old = {"Authorization": basic("prometheus", SECRET)}
    assert guarded.ask("/metrics", headers=old).status == 200
    put(guarded.file, f"basic_auth_users:\n  prometheus: {hashed('new')}\n")
    assert guarded.ask("/metrics", headers=old).status == 401
    assert guarded.ask("/metrics", headers={"Authorization": basic("prometheus", "new")}).status == 200


def test_a_rebound_name_learns_not_even_that_there_is_a_password(guarded):
    assert guarded.ask("/metrics", headers={"Host": "evil.example"}).status == 421


def test_the_password_goes_nowhere(guarded, caplog):
    caplog.set_level("DEBUG")
    guarded.ask("/metrics", headers={"Authorization": basic("prometheus", SECRET)})
    text = guarded.ask("/metrics", headers={"Authorization": basic("prometheus", SECRET)}).data.decode()
    assert SECRET not in text + caplog.text


@pytest.fixture
def checks(monkeypatch):
    """The hash that each run of bcrypt was against."""
    found, real = [], access._matches
    monkeypatch.setattr(access, "_matches", lambda password, wanted: found.append(wanted) or real(password, wanted))
    return found


async def one_by_one(check, _client):
    await asyncio.sleep(0)
    return check()


USERS = {"cheap": hashed("a", 4), "dear": hashed("b", 5)}


def accept_all(*headers, users=USERS):
    """Return the server's answers to these requests, sent one after another."""
    passwords = Passwords(one_by_one)

    async def ask():
        return [await passwords.accept(users, header) for header in headers]

    return asyncio.run(ask())


def test_bcrypt_runs_once_for_any_number_of_scrapes(checks):
    assert accept_all(*[basic("dear", "b")] * 5) == [True] * 5
    assert checks == [USERS["dear"]]


def test_bcrypt_runs_once_for_scrapers_that_come_together(checks):
    passwords = Passwords(one_by_one)

    async def ask():
        return await asyncio.gather(*(passwords.accept(USERS, basic("dear", "b")) for _ in range(20)))

    assert asyncio.run(ask()) == [True] * 20
    assert len(checks) == 1


def test_wrong_passwords_are_never_remembered_as_right():
    assert accept_all(basic("dear", "x"), basic("dear", "x"), basic("dear", "b")) == [False, False, True]


def test_an_unknown_user_costs_as_much_as_the_costliest_user(checks):
    assert accept_all(basic("nobody", "b"), basic("nobody", "b")) == [False, False]
    assert checks == [USERS["dear"]] * 2


def test_a_password_longer_than_bcrypt_reads_is_cut_as_elsewhere():
    long = "x" * 80
    users = {"u": hashed(long[:72])}
    assert accept_all(basic("u", long), users=users) == [True]


def test_what_is_remembered_is_bounded(monkeypatch):
    monkeypatch.setattr(access, "_MAX_REMEMBERED", 2)
    users = {name: hashed("p", 4) for name in "abcd"}
    passwords = Passwords(one_by_one)

    async def ask():
        return [await passwords.accept(users, basic(name, "p")) for name in "abcd" * 2]

    assert all(asyncio.run(ask()))
    assert len(passwords._right) <= 2


def test_guessing_does_not_hold_up_who_knows_the_password(guarded, monkeypatch):
    right = {"Authorization": basic("prometheus", SECRET)}
    assert guarded.ask("/metrics", headers=right).status == 200
    finish = threading.Event()
    monkeypatch.setattr(access, "_matches", lambda *_: finish.wait(60) and False)  # as slow as bcrypt can be
    guesses = [guarded.connect() for _ in range(MAX_GUESSES)]
    for number, sock in enumerate(guesses):
        guess = basic("prometheus", f"guess {number}")
        sock.sendall(f"GET / HTTP/1.1\r\nHost: localhost\r\nAuthorization: {guess}\r\n\r\n".encode())
    bcrypt_thread = guarded.server._app._bcrypt
    wait_until(lambda: bcrypt_thread._waiting.total() == MAX_GUESSES)
    assert guarded.ask("/metrics", headers=right).status == 200
    assert guarded.ask("/metrics", headers={"Authorization": basic("prometheus", "more")}).status == 503
    # Of another address there is room, so whoever knows a password there gets in after these few.
    assert bcrypt_thread._waiting["192.0.2.1"] < MAX_GUESSES
    finish.set()
    for sock in guesses:
        with sock:
            assert receive_answer(sock).startswith(b"HTTP/1.1 401 ")


def test_one_client_has_no_more_than_its_share_of_what_waits():
    release, threads = threading.Event(), Threads(1, "test", 2)

    async def ask(client):
        try:
            return await threads.run(lambda: release.wait(60), client)
        except Problem:
            return "busy"

    async def ask_all():
        asking = [asyncio.ensure_future(ask(client)) for client in ("evil", "evil", "evil", "good")]
        await asyncio.sleep(0)
        release.set()
        return [*await asyncio.gather(*asking), await ask("evil")]

    assert asyncio.run(ask_all()) == [True, True, "busy", True, True]
    assert not threads._waiting
    threads.close()


@given(st.text(alphabet=st.characters(exclude_characters=":", codec="utf-8")), st.binary(max_size=72))
def test_any_user_and_password_can_be_read_back(user, password):
    header = "basic " + base64.b64encode(user.encode() + b":" + password).decode()
    assert parse_basic(header) == (user, password)


@given(st.text())
def test_no_authorization_header_breaks_the_parser(header):
    parse_basic("Basic " + header)


def test_beyond_1000_remembered_passwords_all_are_checked_again(monkeypatch):
    users, checked = dict.fromkeys((f"user{number}" for number in range(1001)), hashed(SECRET)), []
    monkeypatch.setattr(access, "_matches", lambda *_: True)

    async def right(check, client):
        checked.append(client)
        return check()

    async def accept_all():
        passwords = Passwords(right)
        for user in [*list(users)[:1000], "user0", "user999", "user1000", "user0", "user1000"]:
            assert await passwords.accept(users, basic(user, SECRET), user)

    asyncio.run(accept_all())
    assert checked == [*users, "user0"]
