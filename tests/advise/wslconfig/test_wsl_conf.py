"""/etc/wsl.conf as people have it: what WSL makes of it, what to write instead, and a command that does."""

from __future__ import annotations

import shlex
import shutil
import stat
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from wslgpud.advise.wslconfig.check import remarks
from wslgpud.advise.wslconfig.files import CannotSet, changed
from wslgpud.cli import app, wslconfig
from wslgpud.host import Host
from wslgpud.probes import interop
from wslgpud.probes.interop import automount_root
from wslgpud.probes.wsl_config import WSL_CONF, WSLCONFIG, Parsed, parse

HOSTS = Path(__file__).parents[2] / "hosts"
SYSTEMD = {"boot.systemd": "true"}


def conf(text: str) -> Parsed:
    return parse(text, "/etc/wsl.conf", WSL_CONF)


def said(parsed: Parsed) -> list[tuple[int, str, str, str]]:
    return [(r.line, r.wsl, str(r.why), str(r.fix)) for r in remarks(parsed)]


def test_settings_of_the_other_file_are_sent_there():
    ((line, _, why, fix),) = said(parse("[boot]\nsystemd=true\n"))
    assert (line, why) == (2, "WSL reads it in /etc/wsl.conf only, below [boot]")
    assert fix == "move it there: sudo wslgpud wslconfig set boot.systemd=true"
    assert said(conf("[wsl2]\nmemory=16G\n")) == [
        (
            2,
            "Unknown key 'wsl2.memory' in /etc/wsl.conf:2",
            "WSL reads it in .wslconfig only, below [wsl2]",
            "move it there: wslgpud wslconfig set wsl2.memory=16G",
        )
    ]


def test_a_command_to_paste_runs_nothing_that_the_file_says():
    ((*_, fix),) = said(parse("[boot]\ncommand=x; $(reboot) 'a'\n"))

    told = shlex.split(fix.removeprefix("move it there: "))
    assert told == ["sudo", "wslgpud", "wslconfig", "set", "boot.command=x; $(reboot) 'a'"]


def test_a_header_and_a_setting_on_one_line_are_to_be_two_lines():
    # https://github.com/microsoft/WSL/issues/4101
    ((line, wsl, why, fix),) = said(conf("[automount] enabled = true\noptions = metadata\n[boot]\nsystemd=true\n"))

    assert (line, wsl) == (1, r"Expected ' ' or '\n' in /etc/wsl.conf:1")
    assert why == "WSL reads nothing below this line; not in force: options, boot.systemd"
    assert fix == "write enabled = true on a line of its own below [automount]"
    assert said(parse("[wsl2] memory=48GB\n"))[0][3] == "write memory=48GB on a line of its own below [wsl2]"


def test_windows_line_endings_get_a_remark_wsl_does_not_give():
    # https://github.com/microsoft/WSL/issues/12502, https://github.com/microsoft/WSL/issues/8002
    ((line, wsl, why, fix),) = said(conf("[boot]\r\nsystemd = true\r\n\r\n"))

    assert (line, wsl) == (1, "")
    assert "microsoft/WSL#12502" in why
    assert fix == r"give it those of Linux: sudo sed -i 's/\r$//' /etc/wsl.conf"
    assert said(parse("[wsl2]\r\nmemory=8GB\r\n")) == []


@pytest.mark.parametrize(
    ("bad", "fix"),
    [
        ("; a comment of other files", "start comments with # (never with ;) and keys with a letter"),
        ("systemd: true", "write key=value"),
        ("[system-distro-env]", "move it with its lines to .wslgconfig, which WSLg reads"),
        ("[boot-up]", "write it like [boot]"),
        ('command="echo', 'close the "'),
    ],
)
def test_nothing_below_a_line_that_cannot_be_read_is_in_force(bad, fix):
    parsed = conf(f"[boot]\nsystemd=true\n{bad}\n[gpu]\nenabled=false\n[automount]\nroot=/win\n")

    assert (parsed.get("boot.systemd"), parsed.get("gpu.enabled"), parsed.get("automount.root")) == (True, None, None)
    assert [entry.written for entry in parsed.lost] == ["gpu.enabled", "automount.root"]
    ((line, wsl, why, told),) = said(parsed)
    assert (line, bool(wsl), told) == (3, True, fix)
    assert why == "WSL reads nothing below this line; not in force: gpu.enabled, automount.root"


@pytest.mark.parametrize("options", ["fmask=111", "metadata,umask=22,fmask=0133", "umask=0111"])
def test_options_that_block_windows_programs_get_a_remark(options):
    ((line, wsl, why, fix),) = said(conf(f"[automount]\noptions={options}\n"))

    assert (line, wsl, fix) == (
        2,
        "",
        "write fmask=11 in the options: with that mask no Windows program can be started",
    )
    assert "neither Windows' memory" in why
    assert said(conf("[automount]\noptions=metadata,umask=22,fmask=11\n")) == []


@pytest.mark.parametrize("setting", ["gpu.enabled=false", "interop.enabled=0", "automount.cgroups=v1"])
def test_what_nobody_who_trains_should_want_is_a_remark(setting):
    section, _, line = setting.partition(".")

    ((_, wsl, _, fix),) = said(conf(f"[{section}]\n{line}\n"))
    assert (wsl, fix) == ("", "delete the line")


def test_a_full_width_space_ends_a_value_as_it_does_for_wsl():
    parsed = parse("[wsl2]\nmemory=8GB\u3000\nswap=\u30008GB\n")

    assert (parsed.get("wsl2.memory"), parsed.first("wsl2.swap").state) == (8 << 30, "refused")


def test_systemd_is_set_without_touching_the_line_above():
    new = changed("[boot]\ncommand=/sbin/openrc default", SYSTEMD, WSL_CONF)

    assert new == "[boot]\ncommand=/sbin/openrc default\nsystemd=true"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("", "[boot]\nsystemd=true\n"),
        ("[boot]\r\nsystemd = false\r\n", "[boot]\nsystemd = true\n"),
        ("[boot]\nsystemd: true\n[gpu]\n", "[boot]\nsystemd=true\n[gpu]\n"),
        # What is read at all stands above the line that stops WSL.
        ("[boot]\nsystemd=false\n; mine\n", "[boot]\nsystemd=true\n; mine\n"),
    ],
)
def test_systemd_is_set_where_wsl_reads_it(old, new):
    assert changed(old, SYSTEMD, WSL_CONF) == new


@pytest.mark.parametrize("old", ["\n; mine\n[user]\ndefault=me\n", "\n[boot] systemd=false\n", "[user]\n[4]\n[boot]\n"])
def test_a_line_that_stops_wsl_is_named_and_left_to_its_owner(old):
    with pytest.raises(CannotSet, match="which WSL reads only up to line 2"):
        changed(old, SYSTEMD, WSL_CONF)


PIECES = st.sampled_from(
    [
        "[boot]",
        "[gpu",
        "[x-y] ",
        "]",
        "systemd",
        "enabled",
        "=",
        "true",
        '"',
        "#",
        "\\",
        "\n",
        "\r\n",
        " ",
        ";",
        "é",
        "4",
    ]
)


@given(
    st.lists(PIECES, max_size=30).map("".join),
    st.sampled_from([key.path for key in WSL_CONF.keys if key.kind in ("text", "path")]),
)
def test_whatever_stands_there_what_is_set_is_read(text, path):
    try:
        once = changed(text, {path: "value"}, WSL_CONF)
    except CannotSet:
        assert "\r" in text or "unreadable" in [entry.state for entry in conf(text).entries]
        return

    parsed = conf(once)
    assert parsed.first(path).value == "value"
    assert changed(once, {path: "value"}, WSL_CONF) == once
    before = {e.written.lower(): e.value for e in conf(text).entries if e.key and e.key.path != path}
    after = {e.written.lower(): e.value for e in parsed.entries}
    assert {name: after.get(name) for name in before} == before


@pytest.mark.parametrize(
    ("text", "root"),
    [
        ("[automount]\nroot = /windows\n", "/windows/"),
        ('[Automount]\nROOT="/a b/" # mine\n', "/a b/"),
        ("[network]\nroot=/x\n", "/mnt/"),
        ("; here\n[automount]\nroot=/x\n", "/mnt/"),
        ("", "/mnt/"),
    ],
)
def test_the_folder_of_the_drives_is_the_one_that_wsl_uses(tmp_path, text, root):
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/wsl.conf").write_text(text)

    assert automount_root(Host(tmp_path)) == root


def run(*arguments: object):
    return CliRunner().invoke(app, ["wslconfig", *map(str, arguments)])


@pytest.fixture
def place(tmp_path, monkeypatch) -> Path:
    for module in (wslconfig, interop):
        monkeypatch.setattr(module, "WSL_CONF_PATH", str(tmp_path / "wsl.conf"))
    return tmp_path / "wsl.conf"


def test_set_writes_to_the_file_of_the_key_and_keeps_the_old_one(place):
    place.write_text("[boot]\ncommand=mine\n")
    place.chmod(0o640)
    other = place.with_name(".wslconfig")

    assert run("set", "boot.systemd=true", "-y").exit_code == 0
    assert run("set", "WSL2.Memory=8GB", "-y", "--file", other).exit_code == 0

    assert place.read_text() == "[boot]\ncommand=mine\nsystemd=true\n"
    assert stat.S_IMODE(place.stat().st_mode) == 0o640
    assert parse(other.read_text()).get("wsl2.memory") == 8 << 30
    assert stat.S_IMODE(other.stat().st_mode) == 0o644
    (kept,) = place.parent.glob("wsl.conf.*")
    assert kept.read_text() == "[boot]\ncommand=mine\n"
    assert run("restore", "-y", "--file", place).exit_code == 0
    assert place.read_text() == "[boot]\ncommand=mine\n"


@pytest.mark.parametrize(
    ("setting", "why"),
    [
        ("boot.systemd=yes", "Invalid boolean value 'yes'"),
        ("boot.sytemd=true", "WSL does not know this key"),
        ("boot.systemd", "WSL does not know this key"),
    ],
)
def test_set_refuses_what_wsl_would(place, setting, why):
    place.write_text("[boot]\n")
    done = run("set", setting, "-y")

    assert (done.exit_code, place.read_text()) == (2, "[boot]\n")
    assert why in done.output


def test_set_puts_no_key_into_the_file_that_does_not_have_it(place):
    other = place.with_name(".wslconfig")
    other.write_text("[wsl2]\n")
    done = run("set", "wsl2.memory=8GB", "boot.systemd=true", "-y", "--file", other)

    assert (done.exit_code, other.read_text()) == (2, "[wsl2]\n")
    assert "boot.systemd=true: WSL does not know this key in .wslconfig" in done.output


def machine(folder: Path, conf_text: str, config_text: str) -> Path:
    shutil.copytree(HOSTS / "wsl2-idle", folder)
    for path, text in (("etc/wsl.conf", conf_text), ("mnt/c/Users/user/.wslconfig", config_text)):
        (folder / "root" / path).write_bytes(text.encode("utf-8", "surrogateescape"))
    return folder


def test_check_looks_at_both_files(tmp_path):
    done = run("check", "--host-root", machine(tmp_path / "a", "[boot] systemd=true\n", "[wsl2]\nmemory=8GB\n"))

    assert done.exit_code == 1
    assert "\n/etc/wsl.conf: 0 settings in use, 1 remark" in done.output
    assert ".wslconfig: 1 setting in use, 0 remarks" in done.output


def test_invalid_bytes_are_harmless(tmp_path):
    harmless = machine(tmp_path / "a", "", "# \udcff\n[wsl2]\nmemory=8GB\n")

    assert run("check", "--host-root", harmless).exit_code == 0


def test_each_key_is_declared_once_with_a_source_and_in_one_file():
    assert not set(WSL_CONF.by_path) & set(WSLCONFIG.by_path)
    assert all(key.link.startswith("https://") and key.meaning.endswith(".") for key in WSL_CONF.keys)
    assert WSL_CONF.by_name.get("enabled") is None  # four sections have one
