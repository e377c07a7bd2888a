"""The doctor speaks Chinese to whom the alerts and the page speak it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.advise.doctor.test_doctor import CONFIG, OLD_TORCH, TORCH
from tests.hosts.machines import HERE, MACHINES
from wslgpud.advise import doctor
from wslgpud.advise.doctor import chinese
from wslgpud.advise.doctor.findings import CHECKS
from wslgpud.cli import app
from wslgpud.host import RecordedHost

CHINESE = re.compile(r"[\u4e00-\u9fff]")
#: what a check says when it has nothing but a figure, a name or an error of somebody else's
FIGURES = {"0", "CUDA {}", "cuDNN {}", "WSL {}"}
SAYS = {"good", "note", "problem", "not_applicable", "could_not_tell"}


def test_every_check_has_a_chinese_title_and_reason():
    assert set(chinese.CHECKS) == {check.id for check in CHECKS}
    assert all(CHINESE.search(why) for _, why in chinese.CHECKS.values())


def sentences() -> set[str]:
    """What the checks say, as their source has it; {} for each blank."""
    found = set()
    for file in Path(doctor.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in SAYS):
                continue
            match node.args[0]:
                case ast.Constant(value=str(text)):
                    found.add(text)
                case ast.JoinedStr(values=parts):
                    found.add("".join(p.value if isinstance(p, ast.Constant) else "{}" for p in parts))
    return found


def test_every_sentence_in_the_source_is_translated():
    """Filled with figures: what stands in a blank is another's business."""
    known = sentences()
    assert len(known) > 70  # the search itself has not gone blind

    untold = {s for s in known - FIGURES if not CHINESE.search(chinese.sentence(s.replace("{}", "12")))}
    assert untold == set()


@pytest.mark.parametrize("name", MACHINES)
def test_what_is_found_on_real_machines_has_no_english_sentence_left(name):
    """Names, paths, versions and commands are the same in every language; four words in a row are not."""
    english = re.compile(r"[A-Za-z']{2,}( [A-Za-z']{2,}){3,}")
    for finding in doctor.run(RecordedHost(HERE / name), CONFIG, [TORCH, OLD_TORCH]):
        ours = chinese.translated(finding)
        left = english.search(ours.found)
        # What NVML, torch and the kernel say is quoted as they say it.
        assert left is None or finding.id in ("torch.kernel", "gpu.visible", "wsl.kernel"), ours


def test_blanks_may_change_their_order():
    assert (
        chinese.sentence("torch 2.5 of /opt/python has no sm_120") == "/opt/python 中的 torch 2.5 不含 sm_120"
    )
    assert chinese.sentence("12 GiB left on /mnt/c") == "/mnt/c 剩余 12 GiB"
    assert chinese.sentence("wsl --update        (in Windows)") == "wsl --update        (在 Windows 中)"


def test_the_screen_follows_the_locale_and_programs_get_english(monkeypatch):
    monkeypatch.setenv("LC_ALL", "zh_CN.UTF-8")
    arguments = ["doctor", "--host-root", str(HERE / "wsl2-idle")]

    shown = CliRunner().invoke(app, [*arguments, "--all"], env={"COLUMNS": "200"}).stdout
    told = CliRunner().invoke(app, [*arguments, "--json"]).stdout

    assert "GPU 0：1.5 GiB 被占用，而这里没有程序在用" in shown
    assert shown.rstrip().endswith("1 个提示。")
    assert not CHINESE.search(told)


def test_the_page_gets_both_languages():
    (kernel, *_) = doctor.document(doctor.run(RecordedHost(HERE / "wsl2-idle"), CONFIG))

    assert (kernel["id"], kernel["title"], kernel["zh"]["title"]) == (
        "wsl.kernel",
        "Linux kernel",
        "Linux 内核",
    )
    assert set(kernel["zh"]) == {"title", "found", "why", "remedy"}
