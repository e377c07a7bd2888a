"""What a line means is seen with the whole file, and with WSL's other one: files from public repositories and threads."""

from __future__ import annotations

import pytest

from wslgpud.advise.wslconfig.check import remarks
from wslgpud.probes.wsl_config import WSL_CONF, WSLCONFIG, WslFile, parse

STOPS = "write instanceIdleTimeout=-1 below [general] instead"


def said(text: str, file: WslFile = WSLCONFIG) -> list[tuple[int, str, str]]:
    """Return line, reason and fix of each remark."""
    return [(r.line, str(r.why), str(r.fix)) for r in remarks(parse(text, file=file))]


@pytest.mark.parametrize(
    ("line", "home"),
    [
        # https://github.com/AMAUKDev/pipeshub-ai-ama: .wslconfig
        ("appendWindowsPath=true", "interop.appendWindowsPath=true"),
        ("systemd=true", "boot.systemd=true"),
        # A test of a program that repairs such files (found by "[wsl2]\nsystemd=true" among public sources) has these.
        ("command=init", "boot.command=init"),
        ("mountFsTab=true", "automount.mountFsTab=true"),
        ("generateHosts=true", "network.generateHosts=true"),
        ("generateResolvConf=true", "network.generateResolvConf=true"),
        ("hostname=mios", "network.hostname=mios"),
        ("default=mios", "user.default=mios"),
    ],
)
def test_a_key_of_wsl_conf_is_known_below_any_section(line: str, home: str) -> None:
    section = home.partition(".")[0]

    for text in (f"[wsl2]\n{line}\n", f"[experimental]\n{line}\n", f"[{section}]\n{line}\n"):
        ((_, why, fix),) = said(text)
        assert why == f"WSL reads it in /etc/wsl.conf only, below [{section}]"
        assert fix == f"move it there: sudo wslgpud wslconfig set {home}"


@pytest.mark.parametrize(
    ("line", "home"), [("memory=16G", "wsl2.memory=16G"), ("networkingMode=mirrored", "wsl2.networkingMode=mirrored")]
)
def test_a_key_of_wslconfig_is_known_below_any_section(line: str, home: str) -> None:
    # https://github.com/microsoft/WSL/issues/13048
    for section in ("wsl2", "boot", "experimental"):
        ((_, why, fix),) = said(f"[{section}]\n{line}\n", WSL_CONF)
        assert why == "WSL reads it in .wslconfig only, below [wsl2]"
        assert fix == f"move it there: wslgpud wslconfig set {home}"


def test_a_misplaced_key_that_stands_right_too_is_to_go() -> None:
    text = "[wsl2]\nautoMemoryReclaim=dropCache\n[experimental]\nautoMemoryReclaim=dropCache\n"

    assert said(text) == [(2, "it belongs below [experimental], where line 4 has it", "delete the line")]


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        # a public file with a byte order mark, written by PowerShell 5
        ("\ufeff[wsl2]\nnetworkingMode=mirrored\nvmIdleTimeout=-1\n[general]\ninstanceIdleTimeout=-1\n", []),
        ("[general]\ninstanceIdleTimeout=-1\n[wsl2]\nvmIdleTimeout=-1\n", []),
        # https://github.com/microsoft/WSL/issues/8654, https://github.com/microsoft/WSL/issues/11239
        ("[wsl2]\nvmIdleTimeout=-1\n", [2]),
        ("[wsl2]\nvmIdleTimeout=-1\n[general]\ninstanceIdleTimeout=60000\n", [2]),
    ],
)
def test_what_already_stands_there_is_not_advised(text: str, lines: list[int]) -> None:
    assert [(line, fix) for line, _, fix in said(text)] == [(line, STOPS) for line in lines]


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        # https://github.com/7ruedzn/wsl, https://github.com/Juhyunkyu/AI-hub
        ("[wsl2]\nnetworkingMode=mirrored\nlocalhostforwarding=true\n", [3]),
        ("[wsl2]\nlocalhostForwarding=false\n[experimental]\nnetworkingMode=mirrored\n", [2, 4]),
        ("[wsl2]\nlocalhostForwarding=true\n", []),
        ("[wsl2]\nlocalhostForwarding=true\nnetworkingMode=nat\n", []),
    ],
)
def test_forwarding_beside_mirrored_networks_is_told(text: str, lines: list[int]) -> None:
    found = remarks(parse(text))

    assert [remark.line for remark in found] == lines
    if lines:
        wsl = "The wsl2.localhostForwarding setting has no effect when using mirrored networking mode"
        assert wsl in [remark.wsl for remark in found]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        # https://github.com/Elparadisogonzalo/Mach-1
        ("[experimental]\nhostAddressLoopback=true\nbestEffortDnsParsing=true\n", "networkingMode=nat"),
        ("[wsl2]\nnetworkingMode=none\n[experimental]\nignoredPorts=80\n", "networkingMode=none"),
        ("[wsl2]\ndnsTunneling=false\n[experimental]\nbestEffortDnsParsing=true\n", "dnsTunneling=false"),
        ("[experimental]\ndnsTunnelingIpAddress=10.0.0.1\ndnsTunneling=0\n[wsl2]\nautoProxy=0\n", "dnsTunneling=false"),
        ("[wsl2]\nautoProxy=false\n[experimental]\ninitialAutoProxyTimeout=500\n", "autoProxy=false"),
        # https://github.com/microsoft/WSL/issues/12161, https://github.com/microsoft/WSL/issues/11333
        ("[wsl2]\nnetworkingMode=mirrored\nipv6=true\n", "networkingMode=mirrored"),
        ("[wsl2]\nvmSwitch=LAN\n", "networkingMode=nat"),
        ("[wsl2]\nnetworkingMode=mirrored\nfirewall=false\n", "networkingMode=mirrored"),
    ],
)
def test_a_setting_that_another_one_switches_off_is_told(text: str, why: str) -> None:
    assert f"it has no effect with {why}" in [told for _, told, _ in said(text)]


@pytest.mark.parametrize(
    "text",
    [
        # https://github.com/microsoft/WSL/issues/10965, as it is answered there
        "[wsl2]\nnetworkingMode=mirrored\n[experimental]\nhostAddressLoopback=true\nignoredPorts=80,443\n",
        "[wsl2]\nnetworkingMode=bridged\nvmSwitch=LAN\nipv6=true\n",
        "[experimental]\nbestEffortDnsParsing=true\ninitialAutoProxyTimeout=500\nhostAddressLoopback=false\n",
    ],
)
def test_a_setting_beside_what_it_needs_is_no_remark(text: str) -> None:
    assert said(text) == []


@pytest.mark.parametrize(
    "path",
    [
        r"C:\\Users\\user\\Documents\\docker-compose.yml",  # https://github.com/Elparadisogonzalo/Mach-1
        r"C:\\wsl\\modules.vhdx",
        r"C:\\wsl\\linux.tar",
        r"C:\\wsl\\config",
        r"C:\\wsl\\",
    ],
)
def test_a_kernel_that_is_none_is_told(path: str) -> None:
    told = [fix for _, _, fix in said(f"[wsl2]\nkernel={path}\n")]

    assert told == ["delete the line, for WSL's own kernel"] * (not path.endswith("config"))


@pytest.mark.parametrize(
    "path",
    [
        r"C:\\Users\\Sherman\\bzImage",  # https://github.com/microsoft/WSL/issues/10210
        r"C:\\Sources\\vmlinux",  # https://github.com/microsoft/WSL/issues/11779
        r"C:\\Users\\z\\wsl2\\Image",  # https://github.com/microsoft/WSL/issues/4802
        r"C:\\wsl\\vmlinux.bin",  # https://github.com/microsoft/WSL/issues/6156
        r"D:\\Data\\WSL\\__k__\\boot\\bzImage",  # https://github.com/microsoft/WSL/issues/12912
        r"C:\\wsl\\bzImage-6.18.8-wsl2-dxgkrnl-zen5",
        r"%USERPROFILE%\\vmlinuz-5.10.60.1",  # https://github.com/microsoft/WSL/issues/7765
    ],
)
def test_a_kernel_is_known_by_no_name(path: str) -> None:
    assert said(f"[wsl2]\nkernel={path}\n") == []


@pytest.mark.parametrize(
    ("lines", "options"),
    [
        # https://github.com/ChrisMavrommatis/claude-sandbox: wsl.conf
        ("defaultUid = 1000\ndefaultGid = 1000\n", "uid=1000,gid=1000"),
        # https://www.roderickchan.cn/zh-cn/2022-11-28-wsl使用问题记录/
        ("uid=1000\ngid=1000\numask=022\n", "uid=1000,gid=1000,umask=022"),
        ("metadata=true\n", "metadata"),
        ("case=dir\n", "case=dir"),
    ],
)
def test_options_of_mounts_written_as_keys_are_one_line(lines: str, options: str) -> None:
    found = said(f"[automount]\n{lines}", WSL_CONF)

    assert len(found) == lines.count("\n")
    assert {fix for _, _, fix in found} == {f'write options="{options}"'}


def test_options_that_stand_there_are_kept_with_the_others() -> None:
    ((line, why, fix),) = said('[automount]\noptions="metadata"\nuid=1000\n[network]\n', WSL_CONF)

    assert (line, fix) == (3, 'write options="metadata,uid=1000"')
    assert why == "it is no key of its own, but one of the options of [automount]"
    # Nothing of the file that could be more than a number or a word is put into a line to write.
    assert "options=" not in said('[automount]\nuid=1,fmask="\n', WSL_CONF)[0][2]


@pytest.mark.parametrize(
    ("section", "line", "version"),
    [
        ("experimental", "useWindowsDnsCache=false", "2.3.22"),  # https://github.com/microsoft/WSL/issues/12133
        ("wsl2", "pageReporting=false", "1.1.7"),  # https://github.com/microsoft/WSL/issues/9899
        ("wsl2", "pageReportingOrder=9", "1.1.7"),  # https://github.com/bostrot/wsl2-distro-manager/issues/234
    ],
)
def test_a_removed_key_is_told_with_the_version_that_removed_it(section: str, line: str, version: str) -> None:
    assert said(f"[{section}]\n{line}\n") == [(2, f"WSL knows it no longer: {version} removed it", "delete the line")]
