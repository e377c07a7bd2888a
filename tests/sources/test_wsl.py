"""WSL is recognised wherever one sign of it is left, and never where there is none."""

from __future__ import annotations

import pytest

from wslgpud.config import Config
from wslgpud.host import Host, NoData, StoppedClock
from wslgpud.sources.wsl import WslSource, generation

RELEASE = "/proc/sys/kernel/osrelease"


@pytest.mark.parametrize(
    "files",
    [
        {RELEASE: "6.6.87.2-microsoft-standard-WSL2\n"},
        {RELEASE: "6.11.0-WSL2-STABLE+\n"},
        {RELEASE: "6.12.1-custom\n", "/dev/dxg": ""},
        {RELEASE: "6.12.1-custom\n", "/run/WSL/1_interop": ""},
        {RELEASE: "6.12.1-custom\n", "/proc/sys/fs/binfmt_misc/WSLInterop-late": ""},
        {RELEASE: "6.12.1-custom\n", "/usr/lib/wsl/lib/libcuda.so": ""},
    ],
    ids=["kernel", "own-kernel", "dxg", "run", "binfmt", "lib"],
)
def test_each_sign_alone_is_enough_for_wsl2(machine, files):
    assert generation(machine(files)) == 2


def test_wsl1_is_known_by_its_kernel(machine):
    files = {RELEASE: "4.4.0-26100-Microsoft\n", "/proc/sys/fs/binfmt_misc/WSLInterop": ""}
    assert generation(machine(files)) == 1


def test_an_ordinary_linux_is_not_wsl_and_that_is_no_fault(machine):
    host = machine({RELEASE: "6.1.0-18-amd64\n", "/proc/sys/fs/binfmt_misc/python3.11": ""})
    with pytest.raises(NoData, match="not WSL"):
        WslSource(host, Config()).read()


def test_version_network_and_distro_come_from_wsls_own_tools(machine, values, monkeypatch):
    monkeypatch.setenv("WSL_DISTRO_NAME", "of the machine the test runs on")
    host = machine(
        {RELEASE: "6.6.87.2-microsoft-standard-WSL2\n", "/dev/dxg": ""},
        commands={
            "wslinfo --version": "2.7.10\n",
            "wslinfo --networking-mode": "mirrored\n",
            "wslpath -w /": "\\\\wsl.localhost\\Ubuntu-24.04\\\n",
        },
    )
    assert values(WslSource(host, Config()).read()) == {
        "wsl_info{2,2.7.10,mirrored,Ubuntu-24.04}": 1,
        "wsl_gpu_device": 1,
    }


def test_an_old_or_busy_wsl_is_still_wsl(machine, values):
    host = machine(
        {RELEASE: "5.15.90.1-microsoft-standard-WSL2\n"},
        commands={"wslinfo --version": {"error": "wslinfo did not answer within 2 s"}},
    )
    assert values(WslSource(host, Config()).read()) == {"wsl_info{2,,,}": 1, "wsl_gpu_device": 0}


def test_a_session_is_told_by_its_own_name_of_the_distro(machine, monkeypatch):
    monkeypatch.setenv("WSL_DISTRO_NAME", "Debian")
    host = Host(clock=StoppedClock(1.8e9, 1.0))
    source = WslSource(host, Config())
    assert source._distro() == "Debian"


def test_a_busy_wsl_keeps_the_version_it_told_before(machine, values):
    host = machine(
        {RELEASE: "6.6.87.2-microsoft-standard-WSL2\n"}, commands={"wslinfo --version": f"{'7' * 90}\nmore\n"}
    )
    source = WslSource(host, Config())
    told = values(source.read())
    host._commands = {}
    assert values(source.read()) == told
    assert f"wsl_info{{2,{'7' * 80},,}}" in told


def test_asking_is_rare_and_in_a_lane_of_its_own():
    assert WslSource.period_seconds >= 60
    assert WslSource.lane == "wsl"
