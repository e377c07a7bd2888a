"""Secrets by their form, and what must not be taken for one."""

from __future__ import annotations

import json
import time

import pytest

from wslgpud.security.redaction import SECRET, MaskedError, Shown, address, masked, named, parts, visible, without
from wslgpud.sources.processes import title
from wslgpud.words import Message

HIDDEN = "h1dd3n"


@pytest.mark.parametrize(
    "text",
    [
        f"--api-key={HIDDEN}",
        f"--api-key {HIDDEN}",
        f"--password {HIDDEN}",
        f"prog -auth-token {HIDDEN} -x",
        f"OPENAI_API_KEY={HIDDEN} x",
        f"AWS_SECRET_ACCESS_KEY='{HIDDEN} y'",
        f"passwd = {HIDDEN}",
        f'{{"token": "{HIDDEN} and more"}}',
        f"Authorization: Bearer {HIDDEN}.abc",
        f"Basic {HIDDEN}abc",
        f"sk-ant-api03-{HIDDEN}12345678ijkl",
        f"hf_abcdefghij{HIDDEN}",
        f"ghp_abcdefghij{HIDDEN}0123456789",
        f"glpat-abcdefghij{HIDDEN}",
        f"xoxb-1234-{HIDDEN}",
        f"AKIA{HIDDEN.upper()}ABCDEFGHIJ",
        f"eyJhbGciOiJI.{HIDDEN}.SflKxw",
        f"0123456789abcdef{HIDDEN}0123456789",
        f"https://me:{HIDDEN}@host/x",
        f"http://me:pa@{HIDDEN}@host:9/x",
        f"http://me:pa/{HIDDEN}@host/",
        f"postgresql://me:{HIDDEN}@host/db",
        f"url: /v1/metrics?token={HIDDEN}&n=1",
        f"GET /x?a=1&sig={HIDDEN} failed",
        f"https://hooks.slack.com/services/{HIDDEN}/x",
        f"https://discord.com/api/webhooks/1/{HIDDEN}",
        f"https://api.telegram.org/bot{HIDDEN}/sendMessage",
    ],
)
def test_what_has_the_form_of_a_secret_is_masked(text: str) -> None:
    assert HIDDEN not in masked(text).lower()
    assert SECRET in masked(text)
    assert masked(masked(text)) == masked(text)


@pytest.mark.parametrize(
    "text",
    [
        "tokenizer.json",
        "python3 train.py",
        "-m torch.distributed.run",
        "make -j8 all",
        "kworker/0:1-events",
        "train_llama3_70b_instruct_lora_r16_alpha32_v2_final.py",
        "GPU-12345678-1234-1234-1234-123456789abc",
        "see https://github.com/caronc/apprise/wiki",
        "memory: 24684096 kB",
        "GPU 0 full in ~13 s (9-21)",
        "key server.foo is unknown; did you mean server.port?",
        "/mnt/c/Users/me/x@2x.png",
        "a=b c=d",
        "source gpu: NVML probe ended with status 1",
        "http://127.0.0.1:9655/metrics",
        "训练 模型",
    ],
)
def test_ordinary_text_stays_as_it_is(text: str) -> None:
    assert masked(text) == named(text) == text


def test_masked_json_is_json() -> None:
    document = {"token": HIDDEN, "url": f"http://me:{HIDDEN}@h/", "n": 1}

    assert json.loads(masked(json.dumps(document))) == {"token": SECRET, "url": f"http://{SECRET}@h/", "n": 1}


def test_errors_mask_secrets_and_otherwise_stay_translatable() -> None:
    plain = MaskedError("there is no {path}", path="/etc/x")
    assert plain.message == Message("there is no {path}", {"path": "/etc/x"})
    for error in (MaskedError("{told} failed", told=f"--token={HIDDEN}"), MaskedError(f"--token={HIDDEN} failed")):
        assert error.message == str(error) == f"--token={SECRET} failed"


@pytest.mark.parametrize(
    "unit", ["a", "-", "key", "://", "a1", "sk-", '"token"', "--a ", "eyJabcdefgh.", "?a", " = ", 'token="', "token "]
)
def test_a_long_line_takes_time_in_proportion_to_its_length(unit: str) -> None:
    def seconds(count: int) -> float:
        text = unit * (count // len(unit))
        began = time.process_time()
        masked(text)
        return max(time.process_time() - began, 1e-3)

    # With the square of the length it would be a thousand times as long.
    assert min(seconds(64_000) for _ in range(3)) < 200 * min(seconds(2_000) for _ in range(3))


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://hooks.example:8443/services/T0/x?y=z#f", "https://hooks.example:8443"),
        ("http://me:pa@ss@[::1]:80/x", "http://[::1]:80"),
        ("http://me:pa/ss@host/x", f"http://{SECRET}"),
        ("http://me:pa?ss@host/x", f"http://{SECRET}"),
        ("http://me:pa#ss@host/x", f"http://{SECRET}"),
        ("/var/lib/wslgpud/wslgpud.db", "/var/lib/wslgpud/wslgpud.db"),
    ],
)
def test_of_an_address_scheme_and_host_are_shown(url: str, shown: str) -> None:
    assert address(url) == shown


def test_of_a_database_its_name_is_shown_as_well() -> None:
    assert address("postgresql+psycopg://me:x@db:5432/wslgpud?password=x", path=True) == (
        "postgresql+psycopg://db:5432/wslgpud"
    )
    assert address("sqlite:////var/lib/x.db", path=True) == "sqlite:////var/lib/x.db"


def test_what_is_known_is_taken_out_in_every_form() -> None:
    url = f"http://me:pa@{HIDDEN}1@host/{HIDDEN}2?a=%41{HIDDEN}3#{HIDDEN}4"
    said = f"{url} {HIDDEN}1@host /{HIDDEN}2 a=%41{HIDDEN}3 A{HIDDEN}3 {HIDDEN}4"

    assert HIDDEN not in without(said, parts(url))
    assert without("no such file", ["no", "x"]) == "no such file"
    assert without("abcd abc", ["abcd", "abc"]) == f"{SECRET} abc"


@pytest.mark.parametrize(
    ("value", "shows", "visible_to_us", "visible_to_strangers"),
    [
        ("x", "all", "x", "x"),
        ("", "set", "", ""),
        ("x", "set", SECRET, SECRET),
        ("me", "person", "me", SECRET),
        ("http://me:x@pc/y", "address", "http://pc", "http://pc"),
        (("http://pc/y", "z"), "address", ("http://pc", "z"), ("http://pc", "z")),
        (("send", "--key", "x"), "program", ("send", SECRET), ("send", SECRET)),
        (("send",), "program", ("send",), ("send",)),
    ],
)
def test_of_a_setting_is_shown_what_it_declares(
    value: object, shows: Shown, visible_to_us: object, visible_to_strangers: object
) -> None:
    assert visible(value, shows) == visible_to_us
    assert visible(value, shows, to_stranger=True) == visible_to_strangers


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ([f"trainer: epoch 1 --api-key={HIDDEN}"], "trainer"),
        ([f"python3 --token {HIDDEN}"], "python3"),
        ([f"/opt/x --token {HIDDEN}", "--more", HIDDEN], "x"),
        (["python3", f"my script token={HIDDEN}.py"], f"python3 my script token={SECRET}"),
        ([f"token={HIDDEN}"], f"token={SECRET}"),
        ([f"sk-{HIDDEN}0123456789abcdef01"], SECRET),
        ([""], ""),
        (["\x1b]0;t\x07\u202e"], "\ufffd]0;t\ufffd\ufffd"),
    ],
)
def test_of_a_command_program_and_script_are_shown(words: list[str], shown: str) -> None:
    assert title(words) == shown
