"""A model traced: traces of real cards give the memory that was reserved there, and a tracer is not trusted."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.advise.fit.replay import replayed
from wslgpud.advise.fit import asking
from wslgpud.advise.fit.asking import IdleCard, job_of
from wslgpud.advise.fit.plan import NoEstimate, Plan
from wslgpud.advise.fit.source import source_of
from wslgpud.cli import app
from wslgpud.stress import find_python
from wslgpud.stress.find_python import Python

GIB = 1 << 30
RECORDED = json.loads(Path(__file__).with_name("traces.json").read_text())["cases"]
RESNET, LLAMA = source_of("torchvision:resnet50"), source_of("1B")
#: of a billion bytes of weights
USED = {"weights": GIB}


def line(used: dict[str, int] = USED, reserved: int = 0, **more: Any) -> str:
    """Return what a tracer says."""
    facts = {"parameters": 9, "torch": "2.13.0", "measured": True, "unmeasured": 0}
    return json.dumps({**facts, "reserved_bytes": reserved or sum(used.values()), "used": used, **more})


LAST, ALONE = line(), line(measured=False)


@pytest.mark.parametrize("case", RECORDED, ids=lambda case: f"{case['model']} {case['mode']}")
def test_a_real_models_trace_ends_with_what_the_card_reserved(case: dict[str, Any]) -> None:
    assert replayed(case["events"]).reserved_bytes == pytest.approx(case["reserved_bytes"], rel=0.01)


def test_what_is_held_at_the_peak_is_told_by_purpose() -> None:
    found = replayed(["weights", 4 << 20, "activations", 30 << 20, 0, -1, "gradients", 8 << 20])

    assert found.peak == {"weights": 4 << 20, "activations": 30 << 20}


def test_models_that_leave_the_card_free_their_room_for_the_next() -> None:
    apart = replayed(["weights", 30 << 20, 0, "emptied", "weights", 40 << 20])
    together = replayed(["weights", 30 << 20, "weights", 40 << 20])

    assert (apart.reserved_bytes, together.reserved_bytes) == (40 << 20, 70 << 20)


def saying(folder: Path, text: str) -> Python:
    """Return a program in place of a Python, which says this whatever it is asked, and counts its runs."""
    program = folder / "python"
    program.write_text(f"#!/bin/sh\necho >>'{folder}/runs'\ncat <<'END'\n{text}\nEND\n")
    program.chmod(0o755)
    return Python(program, None)


def ask(python: Python, measure_bytes: int = 0, kept: Path | None = None, source: Any = LLAMA) -> Any:
    return asking.ask(python, IdleCard("GPU-1", measure_bytes), kept, source, Plan("training"))


def test_the_parts_of_a_model_add_up_to_reserved_memory_and_cuda(tmp_path: Path) -> None:
    used = {"weights": 4 << 20, "CUDA itself": 32 << 20, "activations": 512}
    found = ask(saying(tmp_path, line(used, 54 << 20)), measure_bytes=1)

    assert (found.parameters, found.by) == (9, "torch 2.13.0")
    # cuBLAS's 32 MiB beside CUDA's 768
    assert found.parts["CUDA itself"] == (768 + 32) << 20
    assert found.parts["PyTorch's cache, unused"] == ((54 - 32 - 4) << 20) - 512
    assert found.total_bytes == found.max_bytes == (54 + 768) << 20


def test_what_was_not_measured_on_the_card_widens_the_estimate(tmp_path: Path) -> None:
    without = ask(saying(tmp_path, ALONE))

    assert without.spread_bytes == round(asking.UNMEASURED_SHARE * without.total_bytes)
    assert ask(saying(tmp_path, LAST), measure_bytes=1).spread_bytes == 0
    assert ask(saying(tmp_path, line(unmeasured=3))).max_bytes is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "without an answer"),
        ("hello", "without an answer"),
        (f"hello\n{LAST}", "without an answer"),
        ("4" * 70000, "without an answer"),
        ('{"a":' * 1000, "without an answer"),
        (line({"wights": 1}), "without an answer"),
        (line({"weights": -1}), "without an answer"),
        (line(parameters="many"), "without an answer"),
        (line(torch="2" * 50), "without an answer"),
        (line(unmeasured=None), "without an answer"),
        ('{"error": "Refused", "why": "no such thing"}', "could not be traced: no such thing"),
        ('{"error": "DataDependentOutputException", "why": ""}', "measure it with 'wslgpud sweep'"),
    ],
    ids=range(12),
)
def test_whatever_a_tracer_says_that_is_no_trace_is_refused(text: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(NoEstimate, match=why):
        ask(saying(tmp_path, text))


@pytest.mark.parametrize("fails", ["exit 139", 'echo \'{"error": "RuntimeError", "why": "no rule"}\' && exit'])
def test_a_tracer_that_fails_on_the_card_is_retried_without_it(fails: str, tmp_path: Path) -> None:
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\nif ! grep -q '\"measure_bytes\": 0'; then {fails}; fi\necho '{ALONE}'")
    program.chmod(0o755)

    found = ask(Python(program, None), measure_bytes=GIB)

    assert found.parts["weights"] == GIB
    assert found.spread_bytes == round(asking.UNMEASURED_SHARE * found.total_bytes)


def test_the_second_time_the_answer_is_there_at_once(tmp_path: Path) -> None:
    python, kept = saying(tmp_path, LAST), tmp_path / "kept"
    first, second = (ask(python, kept=kept) for _ in range(2))

    assert first == second
    assert (tmp_path / "runs").read_text().count("\n") == 1
    assert kept.stat().st_mode & 0o777 == 0o600
    ask(python, measure_bytes=5, kept=kept)
    ask(python, measure_bytes=7, kept=kept)
    assert (tmp_path / "runs").read_text().count("\n") == 2
    kept.write_text(json.dumps({key: {"parameters": -1} for key in json.loads(kept.read_text())}))
    assert ask(python, kept=kept) == first


@pytest.mark.parametrize("library", ["lib", "local/lib", "home/.local/lib"])
def test_packages_that_change_make_a_new_answer(library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "bin").mkdir()
    packages = tmp_path / library / "python3.12/site-packages"
    packages.mkdir(parents=True)
    python = saying(tmp_path / "bin", LAST)
    for stamp in (1, 1, 2):
        os.utime(packages, ns=(stamp, stamp))
        ask(python, kept=tmp_path / "kept")

    assert (tmp_path / "bin/runs").read_text().count("\n") == 2


def test_a_local_file_is_always_retraced_and_answers_are_bounded(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    kept, python = tmp_path / "kept", saying(tmp_path, LAST)
    kept.write_text(json.dumps(dict.fromkeys(map(str, range(asking.MAX_KEPT)))))
    for _ in range(2):
        ask(python, kept=kept, source=source_of(f"{tmp_path}/train.py:make"))
    assert (tmp_path / "runs").read_text().count("\n") == 2
    ask(python, kept=kept)

    assert len(json.loads(kept.read_text())) == asking.MAX_KEPT
    assert "0" not in json.loads(kept.read_text())


def test_a_job_states_the_weight_packing_and_the_image_size() -> None:
    packed = job_of(LLAMA, Plan("lora", "int4"), IdleCard())
    plain = job_of(RESNET, Plan(input=(3, 64, 64)), IdleCard("GPU-1", 5))

    assert (packed["weight_bytes"], packed["unpacking"]) == (4.127 / 8, True)
    assert (plain["input"], plain["measure_bytes"]) == ((3, 64, 64), 5)
    assert plain["weight_bytes"] == 0
    assert job_of(LLAMA, Plan(precision="mxfp4"), IdleCard())["experts_only"]


def test_a_model_by_name_is_traced_in_the_python_that_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # root's own folder of tests is closed to the account that it would be run as
    monkeypatch.setattr(find_python, "account_for", lambda *_, **__: None)
    python = saying(tmp_path, line(measured=False, parameters=25600000))
    words = ["fit", "torchvision:resnet50", "--python", str(python.path), "--batch", "4", "--json"]
    words += ["--state", str(tmp_path)]
    fits = CliRunner().invoke(app, [*words, "--usable", "8GiB"])
    over = CliRunner().invoke(app, [*words, "--usable", "1GiB"])

    assert (fits.exit_code, over.exit_code) == (0, 1)
    assert json.loads(fits.stdout)["model"] == {"name": "torchvision:resnet50", "parameters": 25600000}
    assert json.loads(over.stdout)["fits"] is False
    assert json.loads(over.stdout)["plan"]["input"] == [3, 224, 224]


def test_a_missing_file_and_an_invalid_input_are_refused(tmp_path: Path) -> None:
    missing = CliRunner().invoke(app, ["fit", f"{tmp_path}/train.py:make", "--usable", "1GiB"])
    odd = CliRunner().invoke(app, ["fit", "timm:vit", "--input", "3x", "--usable", "1GiB"])

    assert "there is no file" in missing.output
    assert "write it like 3x224x224" in odd.output


def test_no_setting_is_named_whose_memory_is_not_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither one that cannot be traced nor one whose upper end is open brings a model in."""
    monkeypatch.setattr(find_python, "account_for", lambda *_, **__: None)
    python, large, small = tmp_path / "python", line({"weights": 8 * GIB}, unmeasured=3), line(unmeasured=3)
    python.write_text(
        f"#!/bin/sh\nread job\ncase $job in *'\"batch\": 8'*) echo '{large}';; *bf16*) echo '{small}';;"
        ' *) echo \'{"error": "Refused", "why": "no"}\';; esac\n'
    )
    python.chmod(0o755)
    words = ["fit", "torchvision:resnet50", "--python", str(python), "-b", "8", "-m", "training", "-p", "fp32"]
    done = CliRunner().invoke(app, [*words, "--usable", "4GiB", "--state", str(tmp_path), "--json"])

    assert done.exit_code == 1, done.output
    assert json.loads(done.stdout)["knobs"] == []


def test_what_had_no_room_on_the_card_just_now_is_asked_again(tmp_path: Path) -> None:
    python = saying(tmp_path, line(unmeasured=1))
    for _ in range(2):
        assert ask(python, measure_bytes=5, kept=tmp_path / "kept").max_bytes is None

    assert (tmp_path / "runs").read_text().count("\n") == 2


def test_a_trace_without_the_card_says_what_is_in_use_at_least(tmp_path: Path) -> None:
    """Gaps depend on every size, so that one that is not there on the card is no lower bound."""
    found = ask(saying(tmp_path, line({"weights": 34 << 20}, 50 << 20, measured=False)))

    assert found.parts == {"weights": 34 << 20, "CUDA itself": 768 << 20}
    assert found.max_bytes == round((1 + asking.UNMEASURED_SHARE) * ((50 + 768) << 20))


def test_a_model_that_cannot_be_traced_reports_its_key_and_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(find_python, "account_for", lambda *_, **__: None)
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "dbrx", "attn_config": {"kv_n_heads": 8}}))
    head = json.dumps({"x": {"dtype": "F32", "shape": [1 << 28], "data_offsets": [0, GIB]}}).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(head).to_bytes(8, "little") + head)
        file.truncate(3 * GIB)
    python = saying(tmp_path, '{"error": "AttributeError", "why": "no rope"}')
    done = CliRunner().invoke(app, ["fit", str(folder), "--python", str(python.path), "--usable", "80GB"])

    assert done.exit_code == 2
    assert "understands its attn_config. Its weight files have 3.0 GiB" in " ".join(done.output.split())
    assert "AttributeError: no rope" in " ".join(done.output.split())
