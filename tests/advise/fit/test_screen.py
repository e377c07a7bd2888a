"""The answer of ``wslgpud fit`` on a terminal, character by character, and how its question may be written."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from wslgpud.advise.fit.plan import Estimate, Plan
from wslgpud.cli import app
from wslgpud.cli.common import Fault
from wslgpud.cli.fit_answer import Answer, verdict_on
from wslgpud.cli.fit_room import Usable, given
from wslgpud.words import say

GIB = 1 << 30
PARTS = {"weights": 12 * GIB, "gradients": 6 * GIB, "CUDA itself": GIB // 2}


def answer(usable: int | None, knobs: int = 1, counted: str = "total_bytes", spread: int | None = 0) -> Answer:
    room = None if usable is None else Usable(usable, say("as given"))
    turned = [([say("batch {count}", count=n)], 3000 * n) for n in range(1, knobs + 1)]
    only = [say("gradient checkpointing")]
    how = ["bf16", say("batch 8")]
    found = Estimate(PARTS, spread)
    verdict, turned = verdict_on(found, room), turned if room and found.total_bytes > room.bytes else []
    return Answer("model", Plan(), how, found, room, verdict, turned, only, "noted", counted)


def shown(answer: Answer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> list[str]:
    monkeypatch.setenv("COLUMNS", "80")
    answer.show()
    return [line.rstrip() for line in capsys.readouterr().out.splitlines()]


def test_what_fits_is_shown_with_its_parts(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(answer(24 * GIB), monkeypatch, capsys) == [
        "model  bf16, batch 8",
        " weights       12 GiB    ━━━━━━━━━━━━────────────",
        " gradients     6.0 GiB   ━━━━━━──────────────────",
        " CUDA itself   512 MiB   ────────────────────────",
        " at its peak   18 GiB    ━━━━━━━━━━━━━━━━━━──────",
        " usable        24 GiB    ━━━━━━━━━━━━━━━━━━━━━━━━",
        "It fits, with 5.5 GiB to spare (as given).",
        "Computed only, not measured on a real card: gradient checkpointing.",
        "noted",
    ]


@pytest.mark.parametrize(("usable", "colour"), [(24 * GIB, "32"), (16 * GIB, "31")])
def test_peak_and_verdict_are_green_if_the_job_fits_else_red(
    usable: int, colour: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    lines = shown(answer(usable), monkeypatch, capsys)
    (peak,) = (line for line in lines if "at its peak" in line)
    (judged,) = (line for line in lines if "fit" in line)

    assert f"\x1b[{colour}m━" in peak
    assert judged.startswith(f"\x1b[1;{colour}mIt ")


def test_what_does_not_fit_is_shown_with_what_to_turn(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert shown(answer(16 * GIB), monkeypatch, capsys) == [
        "model  bf16, batch 8",
        " weights       12 GiB    ━━━━━━━━━━━━━━━━────────",
        " gradients     6.0 GiB   ━━━━━━━━────────────────",
        " CUDA itself   512 MiB   ━───────────────────────",
        " at its peak   18 GiB    ━━━━━━━━━━━━━━━━━━━━━━━━",
        " usable        16 GiB    ━━━━━━━━━━━━━━━━━━━━━───",
        "It does not fit: 2.5 GiB too much (as given).",
        "  → batch 1: 3 KiB",
        "Computed only, not measured on a real card: gradient checkpointing.",
        "noted",
    ]
    assert shown(answer(16 * GIB, knobs=0), monkeypatch, capsys)[-3:] == [
        "  No setting makes it fit: use a smaller model or a bigger card.",
        "Computed only, not measured on a real card: gradient checkpointing.",
        "noted",
    ]
    assert shown(answer(16 * GIB, counted="tokens"), monkeypatch, capsys)[-3:] == [
        "  → batch 1: room for 3000 tokens",
        "Computed only, not measured on a real card: gradient checkpointing.",
        "noted",
    ]


def test_without_a_card_it_is_said_how_to_tell_its_size(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told = shown(answer(None), monkeypatch, capsys)
    assert [line.split() for line in told[-10:-2:3]] == [
        ["8.0", "GiB", "7.4", "GiB", "no"],
        ["24", "GiB", "22", "GiB", "yes"],
        ["80", "GiB", "74", "GiB", "yes"],
    ]
    assert [*told[-15:-11], *told[-2:]] == [
        " gradients     6.0 GiB   ━━━━━━━━────────────────",
        " CUDA itself   512 MiB   ━───────────────────────",
        " at its peak   18 GiB    ━━━━━━━━━━━━━━━━━━━━━━━━",
        "No GPU answers here. On common cards (--usable 14.5GiB takes another size):",
        "Computed only, not measured on a real card: gradient checkpointing.",
        "noted",
    ]


def said(usable: int, spread: int | None = 0) -> str:
    return str(answer(usable, spread=spread).verdict[1])


def test_what_takes_all_that_is_usable_fits() -> None:
    whole = sum(PARTS.values())

    assert said(whole) == "It fits, with 0 KiB to spare (as given)."
    assert said(whole - 1024) == "It does not fit: 1 KiB too much (as given)."
    assert answer(whole).document()["fits"] is True
    assert answer(None).document()["fits"] is None


def test_nothing_is_said_to_fit_that_may_take_more() -> None:
    whole = sum(PARTS.values())
    between, open_end = answer(whole + GIB, spread=2 * GIB), answer(80 * GIB, spread=None)

    assert said(whole + GIB, 2 * GIB) == "It may not fit: it takes between 18 GiB and 20 GiB (as given)."
    assert said(80 * GIB, None) == "It may not fit: it takes 18 GiB or more (as given)."
    assert said(whole + 2 * GIB, 2 * GIB) == "It fits, with 0 KiB to spare (as given)."
    assert [a.status for a in (between, open_end, answer(whole), answer(GIB), answer(None))] == [3, 3, 0, 1, 0]
    assert (between.document()["fits"], open_end.document()["max_bytes"]) == (None, None)


def test_a_margin_is_shown_as_two_lines(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(answer(24 * GIB, spread=2 * GIB), monkeypatch, capsys)

    assert lines[4:7] == [
        " at least      18 GiB    ━━━━━━━━━━━━━━━━━━──────",
        " at most       20 GiB    ━━━━━━━━━━━━━━━━━━━━────",
        " usable        24 GiB    ━━━━━━━━━━━━━━━━━━━━━━━━",
    ]


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1073741824", GIB),
        ("1.5G", 3 * GIB // 2),
        ("14.5GiB", 29 * GIB // 2),
        ("2gb", 2 * GIB),
        ("512M", GIB // 2),
        ("3MiB", 3 << 20),
        ("2T", 2 << 40),
        ("1tib", 1 << 40),
    ],
)
def test_the_usable_vram_may_be_written_with_any_unit(text: str, size: int) -> None:
    assert given(text).bytes == size


@pytest.mark.parametrize("text", ["", "G", "big", "1.5", "0GB", "1e999G"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(Fault, match=r"write it like 14\.5GiB"):
        given(text)


def asked(*arguments: str) -> tuple[int, list[str]]:
    done = CliRunner().invoke(app, ["fit", *arguments], env={"COLUMNS": "200"})
    return done.exit_code, done.output.splitlines()


@pytest.mark.parametrize(
    ("arguments", "head"),
    [
        (["7B", "--mode", "inference"], "7B  7.00 B parameters, inference, bf16, batch 1, context 4096"),
        (
            ["7B", "--mode", "lora", "--checkpointing", "--batch", "2", "--context", "512"],
            "7B  7.00 B parameters, LoRA, bf16, batch 2, context 512, adamw, gradient checkpointing",
        ),
        (["7B", "--engine", "vllm"], "7B  7.00 B parameters, vLLM, bf16, context 4096, 0.92"),
    ],
)
def test_the_question_is_repeated_with_its_plan(arguments: list[str], head: str) -> None:
    _, lines = asked(*arguments, "--usable", "500GiB")

    assert lines[0] == head


@pytest.mark.parametrize("resolution", ["63x64", "64x63", "64x16385", "16385x64"])
def test_a_picture_has_sides_of_64_to_16384_pixels(resolution: str) -> None:
    code, lines = asked("sdxl", "--resolution", resolution, "--usable", "500GiB")

    assert code == 2
    assert "up to 16384" in " ".join(lines)
