"""The host access returns whole files, and distinguishes missing from refused."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from pathlib import Path

import pytest

from wslgpud.host import Host, NoData, SourceError


def test_a_file_of_the_kernel_is_read_to_its_end_though_it_comes_in_pieces(tmp_path):
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


def test_what_is_not_there_and_what_cannot_be_read_are_told_apart(tmp_path):
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
