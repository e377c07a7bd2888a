"""Why something could not be had is told in each language."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tests.words.latin import latin_words
from wslgpud.host import Host, NoData, SourceError
from wslgpud.sources.gpu import REMEDIES, explain, explain_silence
from wslgpud.words import ENGLISH, MessageError, cause, say, translator

CHINESE = translator("zh")


@pytest.mark.parametrize(
    ("path", "english"),
    [
        ("/missing", "there is no /missing"),
        ("/folder", "cannot read /folder: Is a directory"),
        ("/loop", "cannot read /loop: Too many levels of symbolic links"),
    ],
)
def test_a_file_that_cannot_be_read_says_why(tmp_path, path, english):
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises((NoData, SourceError)) as caught:
        Host(tmp_path).read(path)

    assert (str(caught.value), ENGLISH.text(caught.value.message)) == (english, english)
    chinese = CHINESE.text(caught.value.message)
    assert (path in chinese, latin_words(chinese)) == (True, [])


@pytest.mark.parametrize("number", [errno.ENOENT, errno.EACCES, errno.ENOSPC, errno.EROFS, errno.EIO])
def test_what_the_system_says_is_translated(number):
    error = OSError(number, os.strerror(number))

    assert ENGLISH.text(cause(error)) == os.strerror(number)
    assert latin_words(CHINESE.text(cause(error))) == []


def test_a_rare_reason_stays_as_it_is():
    assert str(cause(OSError(errno.EPERM, "it is another user's {link}"))) == "it is another user's {link}"
    assert str(cause(OSError("odd"))) == "odd"
    assert (cause(ValueError()), cause(MessageError(say("RAM")))) == ("", say("RAM"))
    assert str(cause(ValueError("[{host}|anything]"))) == "[{host}|anything]"


def test_a_frequent_error_is_translated_even_without_its_number():
    assert ENGLISH.text(cause(ValueError("Connection refused"))) == "Connection refused"
    assert latin_words(CHINESE.text(cause(ValueError("Connection refused")))) == []


def test_foreign_words_stay_on_one_line():
    assert str(MessageError("a\x1b[2J\nb")) == "a [2J b"
    for long in (MessageError("x" * 1000), MessageError(say("x" * 1000))):
        assert str(long) == "x" * 499 + "…"


@pytest.mark.parametrize("wsl", [True, False])
def test_each_fault_of_the_driver_is_explained_in_chinese(wsl):
    told = [explain(error, "nvmlInit", "", wsl=wsl) for error in (*REMEDIES, "TIMEOUT", "UNKNOWN")]
    told.append(explain_silence(say("{probe} does not end", probe=say("NVML probe")), wsl=wsl))

    assert [
        latin_words(CHINESE.text(one), ("protectBinfmt", "libnvidia-compute", "nvidia-utils", "TIMEOUT", "UNKNOWN"))
        for one in told
    ] == [[]] * len(told)


def test_a_folder_of_the_machine_is_no_part_of_the_message(tmp_path: Path):
    with pytest.raises(NoData, match=r"^there is no /proc/stat$"):
        Host(tmp_path).read("/proc/stat")
