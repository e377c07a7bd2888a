"""``wslgpud wslconfig``: when Windows is asked for its size, and what a preset makes of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from wslgpud.advise.wslconfig import files, presets
from wslgpud.advise.wslconfig.presets import for_machine
from wslgpud.cli import app
from wslgpud.host import Host

GIB = 1 << 30


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Host]:
    """The times that Windows, with 64 GiB and 32 processors, was asked for its size."""
    found: list[Host] = []

    def size(host: Host) -> tuple[int, int]:
        found.append(host)
        return 64 * GIB, 32

    monkeypatch.setattr(files, "windows_size", size)
    return found


@pytest.mark.parametrize(
    ("name", "text", "times"),
    [
        (".wslconfig", "[wsl2]\nmemory=8GB\n", 1),
        (".wslconfig", "[wsl2]\nprocessors=8\n", 1),
        (".wslconfig", "[wsl2]\nswap=8GB\n", 0),
        ("wsl.conf", "[wsl2]\nmemory=8GB\n", 0),
    ],
)
def test_windows_is_asked_its_size_only_if_a_file_limits_it(
    name: str, text: str, times: int, asked: list[Host], tmp_path: Path
) -> None:
    (tmp_path / name).write_text(text)
    CliRunner().invoke(app, ["wslconfig", "check", "--file", str(tmp_path / name)])

    assert len(asked) == times


def test_more_memory_than_windows_has_is_a_mistake(asked: list[Host], tmp_path: Path) -> None:
    def checked(setting: str) -> int:
        (tmp_path / ".wslconfig").write_text(f"[wsl2]\n{setting}\n")
        return CliRunner().invoke(app, ["wslconfig", "check", "--file", str(tmp_path / ".wslconfig")]).exit_code

    assert (checked("memory=48GB"), checked("memory=65GB"), len(asked)) == (0, 1, 2)
    assert (checked("processors=32"), checked("processors=33")) == (0, 1)


@pytest.mark.parametrize(
    ("memory", "processors", "ram", "cpus", "times"),
    [
        ("", 0, 64, 32, 1),
        ("16GB", 0, 16, 32, 1),
        ("", 8, 64, 8, 1),
        ("16GB", 8, 16, 8, 0),
        ("16gb", 1, 16, 1, 0),
        ("1GB", 8, 1, 8, 0),
    ],
)
def test_a_preset_is_of_the_size_given_and_else_of_windows_own(
    memory: str, processors: int, ram: int, cpus: int, times: int, asked: list[Host]
) -> None:
    found = for_machine(Host(), "training", memory, processors)

    assert found == presets.settings(presets.PRESETS["training"], ram * GIB, cpus)
    assert len(asked) == times


@pytest.mark.parametrize("memory", ["64", "1023MB", "much", "0GB"])
def test_less_than_a_gigabyte_is_a_slip(memory: str, asked: list[Host]) -> None:
    done = CliRunner().invoke(app, ["wslconfig", "preset", "training", "--memory", memory])

    assert (done.exit_code, asked) == (2, [])
    assert f"--memory {memory}: write it like 64GB" in str(done.exception) + done.output


def test_a_preset_is_printed_with_its_file_and_its_reasons(asked: list[Host], tmp_path: Path) -> None:
    file = tmp_path / ".wslconfig"
    file.write_text("# mine\r\n[wsl2]\r\nmemory=1GB\r\n", newline="")
    words = ["wslconfig", "preset", "training", "--file", str(file)]
    done = CliRunner().invoke(app, words)
    missing = CliRunner().invoke(app, [*words[:-1], str(tmp_path / "none")])

    (memory,) = (one for one in presets.settings(presets.PRESETS["training"], 64 * GIB, 32) if "memory" in one.path)
    assert "\r" not in done.output
    assert done.output.splitlines()[0].startswith(f"# {file} with the preset training: ")
    assert {"# mine", "[wsl2]", f"memory={memory.value}"} <= set(done.output.splitlines())
    assert "memory=1GB" not in done.output
    assert any(line.startswith(f"wsl2.memory={memory.value}: ") for line in done.output.splitlines())
    assert "# mine" not in missing.output
    assert f"memory={memory.value}" in missing.output
