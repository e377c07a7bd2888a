"""The host access returns whole files, and distinguishes missing from refused."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from pathlib import Path

import pytest

from wslgpud import host as host_module
from wslgpud.host import DiskSpace, Host, NoData, SourceError, oom_score_adjust, output, unprotected


def test_a_kernel_file_that_comes_in_pieces_is_read_to_its_end(tmp_path):
    # /proc hands out less than a page at a time; torch's libraries stand far behind the first.
    file = tmp_path / "libtorch_of_this_test.so"
    file.write_bytes(bytes(mmap.PAGESIZE))
    with file.open("rb") as stream:
        # Every second page, or the kernel would join the lines.
        keep = [mmap.mmap(stream.fileno(), mmap.PAGESIZE, prot=mmap.PROT_READ) for _ in range(200)]
        text = Host().read("/proc/self/maps")
    assert text.count(file.name) == 200
    assert len(text) > 4 * 4096
    assert text.endswith("\n")
    assert len(keep) == 200


@pytest.mark.parametrize("path", ["/proc/vmstat", "/proc/self/mounts", "/proc/self/status"])
def test_the_last_line_is_there(path):
    if not os.access(path, os.R_OK):
        pytest.skip(f"{path} may not be read here")
    assert Host().read(path).splitlines()[-1].split()[0] == Path(path).read_text().splitlines()[-1].split()[0]


def test_missing_files_and_unreadable_files_are_told_apart(tmp_path):
    (tmp_path / "folder").mkdir()
    host = Host(tmp_path)
    with pytest.raises(NoData, match="there is no /nothing"):
        host.read("/nothing")
    with pytest.raises(SourceError, match="cannot read /folder: Is a directory"):
        host.read("/folder")
    with pytest.raises(NoData):
        host.names("/nothing")
    with pytest.raises(NoData):
        host.folders("/folder/below")
    (tmp_path / "folder" / "inner").mkdir()
    (tmp_path / "folder" / "file").touch()
    (tmp_path / "folder" / "link").symlink_to("inner")
    assert host.folders("/folder") == ["inner"]


@pytest.mark.parametrize("locale", ["C", "POSIX"])  # a service's, and a minimal image's
def test_a_programs_words_are_utf_8_whatever_the_locale(locale):
    code = "from wslgpud.host import output; print(ascii(output(['printf', r'\\303\\274\\377'], 5)))"
    environment = {**os.environ, "LC_ALL": locale, "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "'\\xfc\\ufffd'\n"


def test_a_file_is_read_up_to_its_limit_and_refused_beyond_it(tmp_path, monkeypatch):
    monkeypatch.setattr(host_module, "MAX_BYTES", 1000)
    for count in (1000, 1001):
        (tmp_path / f"{count}").write_bytes(b"y" * count)
    host = Host(tmp_path)
    assert host.read("/1000") == "y" * 1000
    with pytest.raises(SourceError, match="/1001 is too long"):
        host.read("/1001")
    assert host.read_optional("/1001") == ""


def test_of_a_long_file_the_head_is_read_in_pieces_of_64_kib(tmp_path):
    (tmp_path / "long").write_bytes(b"y" * 300_000)
    assert [len(Host(tmp_path).head("/long", most)) for most in (1, 1 << 16, (1 << 16) + 1)] == [
        1 << 16,
        1 << 16,
        1 << 17,
    ]


def test_of_a_full_folder_some_names_are_returned(tmp_path):
    for name in "abcd":
        (tmp_path / name).mkdir()
    host = Host(tmp_path)
    assert (len(host.names("/", 3)), len(host.names("/")), len(host.folders("/", 3))) == (3, 4, 3)


@pytest.mark.parametrize(
    ("command", "error", "said"),
    [
        (["wslgpud-no-such-program"], NoData, "wslgpud-no-such-program is not installed"),
        (["sh", "-c", "echo no >&2; exit 3"], SourceError, r"sh -c echo no >&2; exit 3 failed \(3\): no"),
        (["sh", "-c", f"exit 3 # {'y' * 200}"], SourceError, f"exit 3 # {'y' * 104}… failed"),
        (["sleep", "60"], SourceError, "sleep did not answer within 1 s"),
    ],
    ids=["missing", "status", "long", "late"],
)
def test_a_program_that_fails_is_named_with_its_reason(command, error, said):
    with pytest.raises(error, match=said):
        output(command, 0.1 if command[0] == "sleep" else 60.0)


@pytest.mark.parametrize(("score", "protected"), [("-1", True), ("0", False), ("500", False), ("rubbish", False)])
def test_a_child_loses_the_protection_that_we_have(tmp_path, monkeypatch, score, protected):
    (tmp_path / "score").write_text(score)
    monkeypatch.setattr(host_module, "_SCORE", str(tmp_path / "score"))
    assert (unprotected(["true"])[0] == "/bin/sh") is protected


@pytest.mark.parametrize(("text", "score"), [("-1000\n", -1000), ("0\n", 0), ("", None), (None, None)])
def test_our_score_is_known_where_the_kernel_tells_it(tmp_path, monkeypatch, text, score):
    if text is not None:
        (tmp_path / "score").write_text(text)
    monkeypatch.setattr(host_module, "_SCORE", str(tmp_path / "score"))
    assert oom_score_adjust() == score


def test_a_program_gets_its_input_folder_and_environment(tmp_path):
    script = "cat; pwd; echo $GIVEN"
    given = {"GIVEN": "a value", "PATH": os.environ["PATH"]}
    assert output(["sh", "-c", script], 60.0, given, folder=str(tmp_path), text="a text\n") == (
        f"a text\n{tmp_path}\na value\n"
    )
    assert output(["pwd"], 60.0) == "/\n"


def test_a_program_that_cannot_be_started_says_why(tmp_path):
    with pytest.raises(SourceError, match="cannot start true: No such file or directory"):
        output(["true"], 60.0, folder=str(tmp_path / "nowhere"))


def test_free_space_is_told_in_bytes_and_in_files(tmp_path):
    found, space = os.statvfs(tmp_path), Host().disk_space(str(tmp_path))
    assert space.size == found.f_blocks * found.f_frsize
    assert 0 <= space.available <= space.free <= space.size
    assert 0 <= space.files_free <= space.files
    with pytest.raises(NoData, match="there is no /nowhere"):
        Host(tmp_path).disk_space("/nowhere")
    (tmp_path / "file").touch()
    with pytest.raises(SourceError, match="cannot query the file system of /file/below: Not a directory"):
        Host(tmp_path).disk_space("/file/below")


def test_a_folder_is_its_owner_s_and_one_that_is_gone_root_s(tmp_path):
    host = Host(tmp_path)
    assert (host.owner("/"), host.owner("/gone")) == (os.geteuid(), 0)


def test_only_the_root_of_this_machine_is_live(tmp_path):
    assert (Host().live, Host("/").live, Host(tmp_path).live) == (True, True, False)
    assert Host(f"{tmp_path}/").path("/etc") == f"{tmp_path}/etc"


def test_a_recorded_machine_has_its_links_disks_and_commands(machine):
    host = machine(
        {"/proc/7/stat": "", "/proc/7/fd/1": ""},
        links={"/proc/7/fd/0": "/dev/null", "/proc/8/exe": "/bin/sh", "/proc/8/cwd": "/"},
        disks={"/": [5, 4, 3, 2, 1]},
        commands={"uname -r": "6.6\n", "uname -x": {"error": "uname failed"}},
    )
    assert [host.exists(path) for path in ("/proc/8/exe", "/proc/7/stat", "/proc/9")] == [True, True, False]
    assert [host.link(path) for path in ("/proc/7/fd/0", "/proc/7/stat")] == ["/dev/null", None]
    assert (host.names("/proc/7/fd"), host.names("/proc/8")) == (["0", "1"], ["cwd", "exe"])
    assert (host.names("/proc/7"), host.names("/proc/8", 1)) == (["fd", "stat"], ["cwd"])
    with pytest.raises(NoData, match="there is no /proc/9"):
        host.names("/proc/9")

    assert host.disk_space("/") == DiskSpace(size=5, free=4, available=3, files=2, files_free=1)
    with pytest.raises(NoData, match="there is no /mnt/c"):
        host.disk_space("/mnt/c")

    assert host.run(["uname", "-r"], 1.0) == "6.6\n"
    with pytest.raises(SourceError, match="uname failed"):
        host.run(["uname", "-x"], 1.0)
    with pytest.raises(NoData, match="uname is not installed"):
        host.run(["uname"], 1.0)


def test_a_recording_belongs_to_root_and_keeps_its_own_time(machine):
    host = machine({"/proc/7/stat": ""}, wall=1.8e9, mono=77.0)
    assert (host.owner("/proc/7"), host.clock.wall(), host.clock.mono()) == (0, 1.8e9, 77.0)
    assert host.recording("nvml.json") is None
    (host.folder / "nvml.json").touch()
    assert host.recording("nvml.json") == host.folder / "nvml.json"
