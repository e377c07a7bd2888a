"""The advice on a file leads to a file that works."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.words.latin import latin_words
from wslgpud import words
from wslgpud.advise.wslconfig import compare, presets
from wslgpud.advise.wslconfig.check import remarks
from wslgpud.advise.wslconfig.files import NotFound, find, windows_size
from wslgpud.cli import app
from wslgpud.host import Host, RecordedHost
from wslgpud.probes.wsl_config import parse

GIB = 1 << 30
SEED = Path(__file__).with_name("seed.wslconfig")
HOSTS = Path(__file__).parents[2] / "hosts"


def run(*arguments: object, text: str = ""):
    return CliRunner().invoke(app, ["wslconfig", *map(str, arguments)], input=text)


@pytest.fixture
def language(monkeypatch):
    """Choose the language of this test, and its locale."""

    def choose(code: str) -> None:
        monkeypatch.setenv("LC_ALL", f"{code}_CN.UTF-8")
        words.use(code)

    yield choose
    words.use("en")


def said(text: str, **facts) -> list[tuple[int, bool, str]]:
    """Return line, whether WSL warns of it too, and the fix."""
    return [(r.line, bool(r.wsl), str(r.fix)) for r in remarks(parse(text), **facts)]


def test_a_file_that_guides_recommend_is_taken_apart():
    assert [(line, wsl) for line, wsl, _ in said(SEED.read_text())] == [
        (5, True),
        (6, False),
        (7, True),
        (8, True),
        (9, True),
        (12, False),
    ]


def test_a_good_file_gets_no_remark():
    text = (
        "[wsl2]\nmemory=48GB\nprocessors=24\nswap=16GB\nswapFile=C:\\\\swap.vhdx\n[general]\ninstanceIdleTimeout=-1\n"
    )

    assert remarks(parse(text), host_memory_bytes=64 * GIB) == []


@pytest.mark.parametrize(
    ("line", "fix"),
    [
        ("memory=50gb", "write memory=50GB (upper case, no space, no fraction)"),
        ("memory=50 GB", "write memory=50GB (upper case, no space, no fraction)"),
        ("memory=50GiB", "write memory=50GB (upper case, no space, no fraction)"),
        ("memory=2.5GB", "write memory=2560MB (whole numbers only)"),
        ("memory=1.5", "write memory=1536MB (whole numbers only)"),
        ("memory=20.434928894043", "write memory=20925MB (whole numbers only)"),
        ("swap=0.5", "write swap=512MB (whole numbers only)"),
        ("swap=none", "write swap=8GB (or swap=0 for none)"),
        ("guiApplications=off", "write guiApplications=false"),
        ("memroy=8GB", "did you mean memory (below [wsl2])?"),
        ("networkingMode=mirored", "write networkingMode=Mirrored"),
        ("; memory=8GB", "start comments with # (never with ;) and keys with a letter"),
        ("swapFile=C:\\Users\\me\\s.vhdx", r"double every backslash: C:\\Users\\me\\swap.vhdx"),
        ("processors=many", "write a whole number"),
        ("macAddress=01:23", "write an address like 01:23:45:67:89:ab"),
        ("ipv6=maybe", "write one of true, false"),
        ("instanceIdleTimeout=-1", "move the line below a line [general]"),
    ],
)
def test_what_wsl_refuses_comes_with_the_line_to_write(line, fix):
    assert said(f"[wsl2]\n{line}\n") == [(2, True, fix)]


def test_what_wsl_rejects_is_quoted_once_with_the_right_form():
    """A list of ports counts as it is, and still WSL warns: of each bad port anew."""
    (ports,) = remarks(parse("[experimental]\nignoredPorts=80,0,70000\n", "F"))
    (address,) = remarks(parse("[experimental]\ndnsTunnelingIpAddress=1.2\n", "F"))

    assert ports.wsl == "Invalid integer value '80,0,70000' for key 'experimental.ignoredPorts' in F:2"
    assert str(ports.fix) == "write ports from 1 to 65535, separated by commas"
    assert address.wsl == "Invalid IP value '1.2' for key 'experimental.dnsTunnelingIpAddress' in F:2"
    assert str(address.fix) == "write an IPv4 address"
    assert {str(remark.why) for remark in (ports, address)} == {"WSL ignores the line and uses its default"}


@pytest.mark.parametrize(
    ("line", "fix"),
    [
        ("memory=8192", "write memory=8192MB"),
        ("memory=64GB", "write memory=60GB or less"),
        ("swapFile=C:\\temp.vhdx", r"double every \ in the path"),
        ("swapFile=D:\\\\数据\\\\swap.vhdx", "use a path without such characters"),
        ("swap=0", "write swap=8GB or more"),
        ("vmIdleTimeout=-1", "write instanceIdleTimeout=-1 below [general] instead"),
        ("kernelCommandLine=sysctl.vm.overcommit_memory=1", "remove sysctl.vm.overcommit_memory=1 from the line"),
    ],
)
def test_what_wsl_takes_in_silence_and_should_not_is_said(line, fix):
    assert said(f"[wsl2]\n{line}\n", host_memory_bytes=64 * GIB) == [(2, False, fix)]


def test_too_many_processors_are_reported_in_wsls_words():
    (found,) = remarks(parse("[wsl2]\nprocessors=40\n"), host_processors=32)

    assert found.wsl == ("wsl2.processors cannot exceed the number of logical processors on the system (40 > 32)")
    assert str(found.fix) == "write processors=32 or less"
    assert remarks(parse("[wsl2]\nprocessors=32\n"), host_processors=32) == []


def test_check_prints_wsls_words_and_the_fix_and_ends_with_1():
    done = run("check", "--file", SEED)

    assert done.exit_code == 1
    assert f"WSL says: Unknown key 'wsl2.pageReporting' in {SEED}:8" in done.output
    assert json.loads(run("check", "--file", SEED, "--json").output)[0]["line"] == 5


def test_each_remark_shows_its_line_wsls_words_why_and_the_fix(tmp_path):
    file = tmp_path / ".wslconfig"
    file.write_text("[wsl2]\n  memroy=8GB\nswap=1")
    done = run("check", "--file", file, "--host-root", HOSTS / "two-gpus")

    assert done.stdout.splitlines() == [
        "line 2: memroy=8GB",
        f"  WSL says: Unknown key 'wsl2.memroy' in {file}:2",
        "  no version of WSL knows this key",
        "  fix: did you mean memory (below [wsl2])?",
        "",
        "line 3: swap=1",
        "  a size without a unit is in bytes",
        "  fix: write swap=1GB",
        "",
        f"{file}: 1 setting in use, 2 remarks",
    ]


def test_in_chinese_no_remark_is_english(language):
    language("zh")
    odd = "[wsl2]\nmemory=8192\nswap=none\nmemroy=1\n; no\n[wsl2 ]\nprocessors=40\nswap=0\nipv6=on\n"
    found = remarks(parse(SEED.read_text())) + remarks(parse(odd), 64 * GIB, 32)
    told = [words.current().text(text) for remark in found for text in (remark.why, remark.fix)]

    assert [(text, latin) for text in told if (latin := latin_words(text, ("compact vdisk",)))] == []


@pytest.mark.parametrize(
    "command",
    [
        ("keys",),
        ("show", "--host-root", HOSTS / "wsl2-idle"),
        ("preset", "max", "--memory", "64GB", "--processors", "32", "--file", "new.wslconfig"),
        ("apply", "turbo"),
    ],
)
def test_in_chinese_what_is_printed_is_not_english(language, command):
    language("zh")

    assert latin_words(run(*command).output, (*presets.PRESETS, "turbo", "panic", "debug", "tun")) == []


def test_limits_in_force_differ_from_those_awaiting_a_restart():
    host = RecordedHost(HOSTS / "wsl2-idle")

    rows = compare.rows(parse("[wsl2]\nmemory=50GB\nprocessors=32\nswap=20GB\ndnsProxy=true\n"), host)

    states = {row.key.path: row.match for row in rows}
    assert states["wsl2.memory"] == states["wsl2.swap"] == "in force"
    assert states["wsl2.processors"] == "waiting"
    assert states["wsl2.dnsProxy"] == "not visible"
    assert states["wsl2.gpuSupport"] == "default"


def test_without_a_wslconfig_wsl_conf_is_checked_all_the_same(tmp_path):
    shutil.copytree(HOSTS / "wsl2-idle", tmp_path / "machine")
    (tmp_path / "machine/root/mnt/c/Users/user/.wslconfig").unlink()
    file = tmp_path / "machine/root/etc/wsl.conf"
    where = ("--json", "--host-root", tmp_path / "machine")
    right = run("check", *where)
    file.write_text("[boot]\nsystemd=yes\n")
    wrong, shown = run("check", *where), run("show", *where)

    assert (right.exit_code, json.loads(right.output)) == (0, [])
    assert (wrong.exit_code, [one["line"] for one in json.loads(wrong.output)]) == (1, [2])
    assert {row["state"] for row in json.loads(shown.output)} == {"default"}
    absent = "there is no /mnt/c/Users/user/.wslconfig: every setting is at its default\n"
    assert run("check", *where[1:]).output.endswith(absent)
    assert run("show", *where[1:]).output.endswith(absent)


def windows(root: Path, *people: str) -> Host:
    """Make a WSL machine whose Windows is used by these people."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/mounts").write_text("C:\\134 /mnt/c 9p rw,aname=drvfs;path=C:\\ 0 0\n")
    for name in ("Public", "Default", *people):
        (root / "mnt/c/Users" / name).mkdir(parents=True)
    return Host(root)


def test_the_file_of_the_only_possible_windows_user_is_found(tmp_path):
    assert find(windows(tmp_path / "a", "me")) == "/mnt/c/Users/me/.wslconfig"
    two = windows(tmp_path / "b", "me", "you")
    (tmp_path / "b/mnt/c/Users/you/.wslconfig").touch()
    assert find(two) == "/mnt/c/Users/you/.wslconfig"


def test_among_several_people_windows_is_asked_and_else_the_user(tmp_path):
    host = windows(tmp_path, "me", "you")
    with pytest.raises(NotFound, match="several people"):
        find(host)

    (tmp_path / "proc/sys/fs/binfmt_misc").mkdir(parents=True)
    (tmp_path / "proc/sys/fs/binfmt_misc/WSLInterop").touch()
    shell = tmp_path / "mnt/c/Windows/System32/WindowsPowerShell/v1.0/powershell.exe"
    shell.parent.mkdir(parents=True)

    def says(words: str) -> None:
        shell.write_text(f"#!/bin/sh\nprintf '%s\\r\\n' '{words}'\n")
        shell.chmod(0o755)

    says("C:\\Users\\you")
    assert find(host) == "/mnt/c/Users/you/.wslconfig"
    says("68524797952 32")
    assert windows_size(host) == (68524797952, 32)
    says("Zugriff verweigert")
    assert windows_size(host) is None


def test_nothing_is_written_unasked_and_restore_goes_back(tmp_path):
    file = tmp_path / ".wslconfig"
    file.write_bytes(old := SEED.read_bytes())
    sizes = ("--memory", "64GB", "--processors", "32", "--file", file)

    assert "memory=32GB" in run("preset", "desktop", *sizes).output
    assert run("apply", "desktop", *sizes, text="n\n").exit_code == 1
    assert file.read_bytes() == old

    done = run("apply", "desktop", *sizes, text="y\n")
    assert done.exit_code == 0
    assert "wsl --shutdown" in done.output
    assert parse(file.read_text()).get("wsl2.memory") == 32 * GIB
    assert "nothing to do" in run("apply", "desktop", *sizes).output

    assert run("restore", "--file", file, "--yes").exit_code == 0
    assert file.read_bytes() == old


def test_a_reader_who_leaves_ends_it_in_silence():
    """``wslgpud wslconfig keys | head``."""
    reader, writer = os.pipe()
    os.close(reader)
    line = [sys.executable, "-m", "wslgpud", "wslconfig", "keys"]
    done = subprocess.run(line, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)

    assert (done.returncode, done.stderr) == (1, "")


def test_values_are_shown_as_they_are(tmp_path):
    (tmp_path / "odd").write_text("[wsl2]\nvmSwitch=[/a]\n")

    assert "[/a]" in run("show", "--file", tmp_path / "odd").output


def test_what_somebody_else_writes_meanwhile_is_not_undone(tmp_path, monkeypatch):
    file = tmp_path / ".wslconfig"
    file.write_text("[wsl2]\n")

    def think(*_, **__):
        file.write_text("[wsl2]\nswap=0\n")  # in Notepad, while we wait for an answer
        return True

    monkeypatch.setattr("click.confirm", think)
    done = run("apply", "desktop", "--memory", "64GB", "--processors", "32", "--file", file)

    assert (done.exit_code, file.read_text()) == (2, "[wsl2]\nswap=0\n")
    assert "changed by another program meanwhile" in done.output


def test_what_cannot_be_done_says_what_to_do(tmp_path):
    for arguments, says in (
        (("apply", "turbo"), "there are training, inference, desktop, max"),
        (("apply", "max", "--memory", "much"), "write it like 64GB"),
        (("apply", "max", "--memory", "64", "--processors", "32"), "write it like 64GB"),
        (("check", "--file", tmp_path / "none"), "every setting is at its default"),
        (("restore", "--file", tmp_path / "none"), "there is no backup"),
    ):
        done = run(*arguments)
        assert done.exit_code == 2
        assert says in done.output
