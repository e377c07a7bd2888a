"""A model traced: traces of real cards give the memory that was reserved there, and a tracer is not trusted."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from wslgpud.advise.fit import asking
from wslgpud.advise.fit.allocator import held
from wslgpud.advise.fit.asking import Asking, IdleCard, NoTrace, job_of
from wslgpud.advise.fit.plan import Plan
from wslgpud.advise.fit.source import source_of
from wslgpud.cli import app
from wslgpud.stress import find_python
from wslgpud.stress.find_python import Python

GIB = 1 << 30
RECORDED = json.loads(Path(__file__).with_name("traces.json").read_text())["cases"]
RESNET, LLAMA = source_of("torchvision:resnet50"), source_of("1B")
LAST = '{"parameters": 9, "torch": "2.13.0", "unmeasured": 0}'


@pytest.mark.parametrize("case", RECORDED, ids=lambda case: f"{case['model']} {case['mode']}")
def test_a_real_models_trace_ends_with_what_the_card_reserved(case: dict[str, Any]) -> None:
    assert held(case["events"]).reserved_bytes == pytest.approx(case["reserved_bytes"], rel=0.01)


def test_what_is_held_at_the_peak_is_told_by_purpose() -> None:
    found = held(["weights", 4 << 20, "activations", 30 << 20, 0, -1, "gradients", 8 << 20])

    assert found.used["weights"] == 4 << 20
    assert found.used["activations"] == 30 << 20
    with pytest.raises(ValueError, match="storage 7 ends"):
        held(["weights", 512, -7])


def test_models_that_leave_the_card_free_their_room_for_the_next() -> None:
    apart = held(["weights", 30 << 20, 0, "emptied", "weights", 40 << 20])
    together = held(["weights", 30 << 20, "weights", 40 << 20])

    assert (apart.reserved_bytes, together.reserved_bytes) == (40 << 20, 70 << 20)


def saying(folder: Path, *lines: str) -> Python:
    """Return a program in place of a Python, which says these lines whatever it is asked, and counts its runs."""
    program = folder / "python"
    text = "\n".join(lines)
    program.write_text(f"#!/bin/sh\necho >>'{folder}/runs'\ncat <<'END'\n{text}\nEND\n")
    program.chmod(0o755)
    return Python(program, None)


def ask(python: Python, measure_bytes: int = 0, folder: Path | None = None, source: Any = LLAMA) -> Any:
    return Asking(python, IdleCard("GPU-1", measure_bytes), folder).ask(source, Plan("training"))


def test_the_parts_of_a_model_add_up_to_reserved_memory_and_cuda(tmp_path: Path) -> None:
    lines = ['"weights"', str(4 << 20), '"CUDA itself"', str(32 << 20), '"activations"', "512", LAST]
    traced = ask(saying(tmp_path, *lines), measure_bytes=1)

    assert (traced.parameters, traced.torch) == (9, "2.13.0")
    # 20 MiB for the large block, 2 MiB for the small one, and cuBLAS's 32 beside CUDA's 768
    assert traced.found.total_bytes == traced.found.max_bytes == (20 + 2 + 32 + 768) << 20


def test_what_was_not_measured_on_the_card_widens_the_estimate(tmp_path: Path) -> None:
    convolutions = LAST.replace('"unmeasured": 0', '"unmeasured": 3')
    plain = saying(tmp_path, '"weights"', str(GIB), LAST)
    without = ask(plain)

    assert without.found.spread_bytes == round(asking.UNMEASURED_SHARE * without.found.total_bytes)
    assert ask(plain, measure_bytes=1).found.spread_bytes == 0
    assert ask(saying(tmp_path, '"weights"', str(GIB), convolutions)).found.max_bytes is None


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        (["hello"], "outside its protocol"),
        (['"wights"'], "outside its protocol"),
        (["1" * 4000], "outside its protocol"),
        (["-3"], "outside its protocol"),
        (["4" * 70000], "wrote far too much"),
        (['"weights"', "512"], "without an answer"),
        (['{"parameters": "many", "torch": 1}'], "without an answer"),
        (['{"parameters": 1, "torch": "2", "unmeasured": null}'], "without an answer"),
        (['{"error": "Refused", "why": "no such thing"}'], "could not be traced: no such thing"),
        (['{"error": "DataDependentOutputException", "why": ""}'], "measure it with 'wslgpud sweep'"),
    ],
)
def test_whatever_a_tracer_says_that_is_no_trace_is_refused(lines: list[str], why: str, tmp_path: Path) -> None:
    with pytest.raises(NoTrace, match=why):
        ask(saying(tmp_path, *lines))


def test_a_tracer_that_dies_on_the_card_is_retried_without_it(tmp_path: Path) -> None:
    program = tmp_path / "python"
    answer = f"cat <<'END'\n\"weights\"\n{GIB}\n{LAST}\nEND\n"
    program.write_text(f"#!/bin/sh\ngrep -q '\"measure_bytes\": 0' || exit 139\n{answer}")
    program.chmod(0o755)

    found = ask(Python(program, None), measure_bytes=GIB).found

    assert found.parts["weights"] == GIB
    assert found.spread_bytes == round(asking.UNMEASURED_SHARE * found.total_bytes)


def test_the_second_time_the_answer_is_there_at_once(tmp_path: Path) -> None:
    python, kept = saying(tmp_path, '"weights"', str(GIB), LAST), tmp_path / "kept"
    first, second = (ask(python, folder=kept) for _ in range(2))

    assert first == second
    assert (tmp_path / "runs").read_text().count("\n") == 1
    (file,) = kept.iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    ask(python, measure_bytes=5, folder=kept)
    ask(python, measure_bytes=7, folder=kept)
    assert (tmp_path / "runs").read_text().count("\n") == 2
    file.write_text("{}")
    assert ask(python, folder=kept) == first


def test_packages_that_change_make_a_new_answer(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    packages = tmp_path / "lib/python3.12/site-packages"
    packages.mkdir(parents=True)
    python = saying(tmp_path / "bin", LAST)
    for stamp in (1, 1, 2):
        os.utime(packages, ns=(stamp, stamp))
        ask(python, folder=tmp_path / "kept")

    assert (tmp_path / "bin/runs").read_text().count("\n") == 2


def test_a_local_file_is_always_retraced_and_answers_are_bounded(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    kept, python = tmp_path / "kept", saying(tmp_path, LAST)
    kept.mkdir()
    for number in range(asking.MAX_KEPT):
        (kept / f"{number}.json").write_text("{}")
        os.utime(kept / f"{number}.json", ns=(number, number))
    for _ in range(2):
        ask(python, folder=kept, source=source_of(f"{tmp_path}/train.py:make"))
    assert (tmp_path / "runs").read_text().count("\n") == 2
    ask(python, folder=kept)

    assert len(list(kept.iterdir())) == asking.MAX_KEPT
    assert not (kept / "0.json").exists()


def test_the_parts_of_a_trace_are_told_as_they_come(tmp_path: Path) -> None:
    told: list[str] = []
    python = saying(tmp_path, '"weights"', "512", '"activations"', "512", LAST)
    Asking(python, IdleCard(), None, told.append).ask(LLAMA, Plan())

    assert told == ["weights", "activations"]


def test_a_job_states_the_weight_packing_and_the_image_size() -> None:
    packed = job_of(LLAMA, Plan("lora", "int4"), IdleCard())
    plain = job_of(RESNET, Plan(input=(3, 64, 64)), IdleCard("GPU-1", 5))

    assert (packed["weight_bytes"], packed["unpacking"]) == (4.127 / 8, True)
    assert (plain["input"], plain["measure_bytes"]) == ((3, 64, 64), 5)
    assert job_of(RESNET, Plan(), IdleCard())["input"] == (3, 224, 224)
    assert "weight_bytes" not in plain
    assert job_of(LLAMA, Plan(precision="mxfp4"), IdleCard())["experts_only"]


def test_a_model_by_name_is_traced_in_the_python_that_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # root's own folder of tests is closed to the account that it would be run as
    monkeypatch.setattr(find_python, "account_for", lambda *_, **__: None)
    last = '{"parameters": 25600000, "torch": "2.13.0", "unmeasured": 0}'
    python = saying(tmp_path, '"weights"', str(GIB), last)
    words = ["fit", "torchvision:resnet50", "--python", str(python.path), "--batch", "4", "--json"]
    words += ["--state", str(tmp_path)]
    fits = CliRunner().invoke(app, [*words, "--usable", "8GiB"])
    over = CliRunner().invoke(app, [*words, "--usable", "1GiB"])

    assert (fits.exit_code, over.exit_code) == (0, 1)
    assert json.loads(fits.stdout)["model"] == {"name": "torchvision:resnet50", "parameters": 25600000}
    assert json.loads(over.stdout)["fits"] is False


def test_a_missing_file_and_an_invalid_input_are_refused(tmp_path: Path) -> None:
    missing = CliRunner().invoke(app, ["fit", f"{tmp_path}/train.py:make", "--usable", "1GiB"])
    odd = CliRunner().invoke(app, ["fit", "timm:vit", "--input", "3x", "--usable", "1GiB"])

    assert "there is no file" in missing.output
    assert "write it like 3x224x224" in odd.output


def test_no_setting_is_named_whose_memory_is_not_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither one that cannot be traced nor one whose upper end is open brings a model in."""
    monkeypatch.setattr(find_python, "account_for", lambda *_, **__: None)
    unknown = LAST.replace('"unmeasured": 0', '"unmeasured": 3')
    python = tmp_path / "python"
    answer = f'"weights"\\n%s\\n{unknown}\\n'.replace('"', r"\"")
    python.write_text(
        f'#!/bin/sh\nread job\ncase $job in *\'"batch": 8\'*) printf "{answer}" {8 * GIB};;'
        f' *bf16*) printf "{answer}" {GIB};; *) echo \'{{"error": "Refused", "why": "no"}}\';; esac\n'
    )
    python.chmod(0o755)
    words = ["fit", "torchvision:resnet50", "--python", str(python), "-b", "8", "-m", "training", "-p", "fp32"]
    done = CliRunner().invoke(app, [*words, "--usable", "4GiB", "--state", str(tmp_path), "--json"])

    assert done.exit_code == 1, done.output
    assert json.loads(done.stdout)["knobs"] == []


def test_what_had_no_room_on_the_card_just_now_is_asked_again(tmp_path: Path) -> None:
    python = saying(tmp_path, '"weights"', str(GIB), LAST.replace('"unmeasured": 0', '"unmeasured": 1'))
    for _ in range(2):
        assert ask(python, measure_bytes=5, folder=tmp_path / "kept").found.max_bytes is None

    assert (tmp_path / "runs").read_text().count("\n") == 2


def test_a_trace_without_the_card_says_what_is_in_use_at_least(tmp_path: Path) -> None:
    """Gaps depend on every size, so that one that is not there on the card is no lower bound."""
    python = saying(tmp_path, '"weights"', str(30 << 20), str(4 << 20), LAST)
    found = ask(python).found

    assert found.parts == {"weights": 34 << 20, "CUDA itself": 768 << 20}
    assert found.max_bytes == round((1 + asking.UNMEASURED_SHARE) * ((30 + 20 + 768) << 20))


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
