"""The answer of ``wslgpud fit`` on a terminal, character by character, and how its question may be written."""

from __future__ import annotations

from typing import Any

import pytest
from click.testing import CliRunner

from wslgpud.advise.fit.plan import Estimate, Plan
from wslgpud.advise.fit.source import NamedModel
from wslgpud.cli import app
from wslgpud.cli.common import Fault
from wslgpud.cli.fit import Usable, answered, given, show
from wslgpud.words import say

GIB = 1 << 30
PARTS = {"weights": 12 * GIB, "gradients": 6 * GIB, "CUDA itself": GIB // 2}


def answer(usable: int | None, spread: int | None = 0, *, knobs: bool = True) -> dict[str, Any]:
    """Return the answer for a batch of 8, of which fewer take next to nothing."""

    def engine(_: NamedModel, plan: Plan) -> Estimate:
        parts = {"weights": 3000 * plan.batch} if knobs and plan.batch < 8 else PARTS
        return Estimate(parts, spread, by="torch 2.11.0", unmeasured=(say("gradient checkpointing"),))

    room = None if usable is None else Usable(usable, say("as given"))
    return answered(NamedModel("model", "named", ""), Plan(batch=8), room, engine) | {"note": "noted"}


def shown(answer: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> list[str]:
    monkeypatch.setenv("COLUMNS", "80")
    show(answer)
    return [line.rstrip() for line in capsys.readouterr().out.splitlines()]


def test_what_fits_is_shown_with_its_parts(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(answer(24 * GIB), monkeypatch, capsys) == [
        "model  inference, bf16, batch 8, torch 2.11.0",
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
        "model  inference, bf16, batch 8, torch 2.11.0",
        " weights       12 GiB    ━━━━━━━━━━━━━━━━────────",
        " gradients     6.0 GiB   ━━━━━━━━────────────────",
        " CUDA itself   512 MiB   ━───────────────────────",
        " at its peak   18 GiB    ━━━━━━━━━━━━━━━━━━━━━━━━",
        " usable        16 GiB    ━━━━━━━━━━━━━━━━━━━━━───",
        "It does not fit: 2.5 GiB too much (as given).",
        "  → batch 7: 21 KiB",
        "Computed only, not measured on a real card: gradient checkpointing.",
        "noted",
    ]
    assert shown(answer(16 * GIB, knobs=False), monkeypatch, capsys)[-3:] == [
        "  No setting surely fits: try a smaller model, a bigger card or 'wslgpud sweep'.",
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
    return str(answer(usable, spread)["verdict"])


def test_what_takes_all_that_is_usable_fits() -> None:
    whole = sum(PARTS.values())

    assert said(whole) == "It fits, with 0 KiB to spare (as given)."
    assert said(whole - 1024) == "It does not fit: 1 KiB too much (as given)."
    assert answer(whole)["fits"] is True
    assert answer(None)["fits"] is None


def test_nothing_is_said_to_fit_that_may_take_more() -> None:
    whole = sum(PARTS.values())
    assert said(whole + GIB, 2 * GIB) == "It may not fit: it takes between 18 GiB and 20 GiB (as given)."
    assert said(80 * GIB, None) == "It may not fit: it takes 18 GiB or more (as given)."
    assert said(whole + 2 * GIB, 2 * GIB) == "It fits, with 0 KiB to spare (as given)."
    between, open_end = answer(whole + GIB, 2 * GIB), answer(80 * GIB, None)
    assert (between["fits"], open_end["fits"], open_end["max_bytes"]) == (None, None, None)


def test_a_margin_is_shown_as_two_lines(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(answer(24 * GIB, 2 * GIB), monkeypatch, capsys)

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
        (
            ["7B", "--engine", "vllm"],
            "7B  7.00 B parameters, inference, bf16, batch 1, context 4096, vLLM, with room for 857438 tokens",
        ),
    ],
)
def test_the_question_is_repeated_with_its_plan(arguments: list[str], head: str) -> None:
    _, lines = asked(*arguments, "--usable", "500GiB")

    assert lines[0] == head


@pytest.mark.parametrize("sides", ["512", "512x512", "3x", "x", "3x16x512x512"])
def test_a_picture_of_a_pipeline_has_colours_height_and_width(sides: str) -> None:
    code, lines = asked("sdxl", "--input", sides, "--usable", "500GiB")

    assert code == 2
    assert "write it like 3x1024x1024" in " ".join(lines)
