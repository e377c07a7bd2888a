"""Sizes in .wslconfig, at the limits of the advice; what a preset divides; what counts as in force."""

from __future__ import annotations

from pathlib import Path

import pytest

from wslgpud.advise.wslconfig import compare
from wslgpud.advise.wslconfig.check import remarks
from wslgpud.advise.wslconfig.presets import PRESETS, settings
from wslgpud.host import Host
from wslgpud.probes.wsl_config import WSL_CONF, WSLCONFIG, parse

GIB, MIB = 1 << 30, 1 << 20
LITTLE = "write memory=8GB or more"


@pytest.mark.parametrize(
    ("line", "windows", "fixes"),
    [
        ("memory=0", None, []),
        ("memory=1", None, ["write memory=1GB"]),
        ("memory=511", None, ["write memory=511GB"]),
        ("memory=512", None, ["write memory=512MB"]),
        (f"memory={(1 << 24) - 1}", None, ["write memory=16777215MB"]),
        (f"memory={1 << 24}", None, [LITTLE]),
        ("memory=2047MB", None, [LITTLE]),
        ("memory=2GB", None, []),
        ("memory=60GB", 64 * GIB, []),
        ("memory=61GB", 64 * GIB, ["write memory=60GB or less"]),
        ("memory=61GB", None, []),
        ("memory=2GB", 5 * GIB, []),
        ("memory=3GB", 5 * GIB, ["write memory=2GB or less"]),
        ("swap=1", None, ["write swap=1GB"]),
        ("swap=100GB", 64 * GIB, []),
        ("vmIdleTimeout=0", None, []),
        ("vmIdleTimeout=60000", None, ["delete the line"]),
        ("memory=1.5TB", None, ["write memory=1536GB (whole numbers only)"]),
        ("memory=2.5MB", None, ["write memory=2560KB (whole numbers only)"]),
        ("memory=2.5KB", None, ["write memory=2KB (upper case, no space, no fraction)"]),
        ("guiApplications=yes", None, ["write guiApplications=true"]),
        ("guiApplications=no", None, ["write guiApplications=false"]),
        ("guiApplications=On", None, ["write guiApplications=true"]),
    ],
)
def test_a_size_is_told_from_the_limit_on(line, windows, fixes):
    told = remarks(parse(f"[wsl2]\n{line}\n"), host_memory_bytes=windows)

    assert [str(remark.fix) for remark in told] == fixes


@pytest.mark.parametrize(
    ("processors", "has", "told"), [(1, 1, 0), (2, 1, 1), (32, 32, 0), (33, 32, 1), (33, 0, 0), (33, None, 0)]
)
def test_more_processors_than_there_are_is_one_more(processors, has, told):
    assert len(remarks(parse(f"[wsl2]\nprocessors={processors}\n"), host_processors=has)) == told


@pytest.mark.parametrize(
    ("options", "blind"),
    [
        ("fmask=111", True),
        ("fmask=0777", True),
        ("umask=111,metadata", True),
        ("fmask=110,umask=001", True),
        ("fmask=11", False),
        ("fmask=110", False),
        ("dmask=111", False),
        ("metadata", False),
    ],
)
def test_a_mask_that_takes_every_execute_bit_is_told(options, blind):
    told = remarks(parse(f"[automount]\noptions={options}\n", "/etc/wsl.conf", WSL_CONF))

    assert [remark.line for remark in told] == ([2] if blind else [])


def test_of_the_settings_below_a_bad_line_six_are_named():
    keys = ["enabled=true", "mountFsTab=true", "root=/mnt/", "options=uid=1", "cgroups=v2", "ldconfig=true"]
    more = ["[network]", "generateHosts=true", "generateResolvConf=true"]
    text = "\n".join(["[boot] x", "[automount]", *keys, *more])
    why = str(remarks(parse(f"{text}\n", "/etc/wsl.conf", WSL_CONF))[0].why)

    assert why.count("automount.") + why.count("network.") == 6, why


#: PC's GiB and processors -> memory, processors, swap of each preset
DIVIDED = {
    (64, 32): {
        "training": ("50GB", "24", "20GB"),
        "inference": ("40GB", "20", "16GB"),
        "desktop": ("32GB", "16", "16GB"),
        "max": ("56GB", "28", "24GB"),
    },
    (16, 8): {
        "training": ("12GB", "6", "5GB"),
        "inference": ("10GB", "5", "4GB"),
        "desktop": ("8GB", "4", "4GB"),
        "max": ("12GB", "6", "5GB"),
    },
    (6, 4): {
        "training": ("3GB", "2", "1GB"),
        "inference": ("3GB", "2", "1GB"),
        "desktop": ("3GB", "2", "2GB"),
        "max": ("3GB", "2", "1GB"),
    },
    (1, 1): dict.fromkeys(("training", "inference", "desktop", "max"), ("1GB", "1", "1GB")),
}


@pytest.mark.parametrize("pc", DIVIDED)
def test_a_preset_leaves_windows_4_gib_and_two_processors(pc):
    gibibytes, processors = pc

    def divided(name: str) -> tuple[str, ...]:
        found = settings(PRESETS[name], gibibytes * GIB, processors)
        return tuple(one.value for one in found[:3])

    assert {name: divided(name) for name in PRESETS} == DIVIDED[pc]


def test_the_shares_of_a_preset_are_told():
    memory, processors, swap, *_ = (str(one.why) for one in settings(PRESETS["training"], 64 * GIB, 32))

    assert memory == "78 % of 64 GiB, taken on demand; Windows keeps 14 GiB"
    assert processors == "75 % of 32; the rest keeps Windows responsive"
    assert swap == "40 % of the memory: a peak slows programs instead of killing them"


@pytest.mark.parametrize(
    ("path", "wanted", "has", "fit"),
    [
        ("wsl2.memory", 40 * GIB, 40 * GIB, True),
        ("wsl2.memory", 40 * GIB, 40 * GIB + 1, False),
        ("wsl2.memory", 1000 * MIB, 805 * MIB, True),
        ("wsl2.memory", 1000 * MIB, 805 * MIB - 1, False),
        ("wsl2.swap", 8 * GIB, 8 * GIB - MIB, True),
        ("wsl2.swap", 8 * GIB, 8 * GIB - MIB - 1, False),
        ("wsl2.swap", 8 * GIB, 8 * GIB + MIB + 1, False),
        ("wsl2.kernelCommandLine", "psi=1", "quiet psi=1", True),
        ("wsl2.kernelCommandLine", "psi=1 x", "quiet psi=1", False),
        ("wsl2.networkingMode", "Mirrored", "mirrored", True),
        ("wsl2.networkingMode", "VirtioProxy", "consomme", True),
        ("wsl2.networkingMode", "NAT", "mirrored", False),
        ("wsl2.nestedVirtualization", True, False, True),
        ("wsl2.nestedVirtualization", False, True, False),
        ("wsl2.nestedVirtualization", False, False, True),
        ("wsl2.processors", 8, 8, True),
        ("wsl2.processors", 8, 16, False),
        ("wsl2.memory", 0, 40 * GIB, True),
        ("wsl2.processors", 0, 16, True),
    ],
)
def test_a_setting_is_in_force_within_what_the_kernel_keeps(path, wanted, has, fit):
    assert compare.fits(path, wanted, has) is fit


def test_the_settings_a_machine_shows_are_read_from_its_files(tmp_path: Path) -> None:
    def facts(**files: str) -> dict[str, compare.Fact]:
        for name, text in files.items():
            file = tmp_path / name.replace("__", "/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        return {path.partition(".")[2]: value for path, value in compare.facts(Host(tmp_path)).items()}

    nothing = facts()
    nothing.pop("networkingMode", None)
    assert nothing == {"gpuSupport": False}
    assert "guiApplications" not in facts(mnt__wslg__run__user__x="")
    found = facts(
        proc__meminfo="MemTotal: 2048 kB\nSwapTotal: 0 kB\n",
        proc__stat="cpu  1\ncpu0 1\ncpu1 1\n",
        proc__cmdline="psi=1\n",
        proc__cpuinfo="flags\t: fpu vmx\n",
        proc__self__mounts="none /mnt/wslg tmpfs rw,relatime 0 0\n",
        dev__dxg="",
    )
    found.pop("networkingMode", None)
    assert found == {
        "memory": 2 * MIB,
        "swap": 0,
        "processors": 2,
        "kernelCommandLine": "psi=1",
        "gpuSupport": True,
        "guiApplications": True,
        "nestedVirtualization": True,
    }
    assert facts(proc__cpuinfo="flags\t: fpu\n")["nestedVirtualization"] is False


@pytest.mark.parametrize(
    ("path", "value", "quoted", "measured"),
    [
        ("wsl2.memory", None, "", ""),
        ("wsl2.memory", 0, "0", "0"),
        ("wsl2.memory", 2 << 40, "2TB", "2.0 TiB"),
        ("wsl2.memory", 50 * GIB, "50GB", "50 GiB"),
        ("wsl2.memory", 1536 * MIB, "1536MB", "1.5 GiB"),
        ("wsl2.memory", 3 << 10, "3KB", "3 KiB"),
        ("wsl2.memory", 1025, "1025B", "1 KiB"),
        ("wsl2.processors", 1024, "1024", "1024"),
        ("wsl2.guiApplications", False, "false", "false"),
    ],
)
def test_a_value_is_written_as_in_the_file_a_size_as_elsewhere(path, value, quoted, measured):
    key = WSLCONFIG.by_path[path.lower()]

    assert (compare.quoted(key, value), compare.measured(key, value)) == (quoted, measured)
