"""Editing a file changes only the requested setting."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.advise.wslconfig.test_parse import FRAGMENTS
from wslgpud.advise.wslconfig import presets
from wslgpud.advise.wslconfig.check import remarks
from wslgpud.advise.wslconfig.files import CannotSet, backups, changed, decoded, encoded, replace
from wslgpud.probes.wsl_config import WSLCONFIG, parse

GIB = 1 << 30
NOW = datetime(2026, 11, 21, 9, 30, 5, tzinfo=timezone.utc)
PATHS = st.sampled_from([key.path for key in WSLCONFIG.keys if key.kind in ("text", "path")])
# What has a low byte of zero, as a full-width space has, ends a value for WSL.
CHARACTERS = st.characters(codec="utf-8", exclude_characters="\r\0\ufeff").filter(lambda one: ord(one) & 0xFF)
VALUES = st.text(CHARACTERS, max_size=30)
FILES = st.lists(FRAGMENTS, max_size=40).map("".join)


def state(text: str) -> dict[str, str]:
    return {e.key.path: e.value for e in parse(text).entries if e.key and e.state != "duplicate"}


@given(FILES, PATHS, VALUES)
def test_what_is_set_is_read_back_and_all_else_stays(text, path, value):
    try:
        new = changed(text, {path: value})
    except CannotSet:
        assert "\r" in text  # a lone carriage return confuses WSL as well; then nothing is written
        return

    assert parse(new).first(path).value == value
    others = {k: v for k, v in state(text).items() if k != path}
    assert {k: v for k, v in state(new).items() if k != path} == others


@given(FILES, PATHS, VALUES)
def test_setting_a_value_twice_is_setting_it_once(text, path, value):
    try:
        once = changed(text, {path: value})
    except CannotSet:
        return

    assert changed(once, {path: value}) == once


@given(PATHS, VALUES)
def test_any_value_survives_being_written(path, value):
    section, _, name = path.partition(".")

    assert parse(f"[{section}]\n{name}={encoded(value)}\n").first(path).value == value


@given(st.binary(max_size=200))
@example(b"\xff\xfe[\x00\x00\xd8")
def test_reading_and_writing_back_loses_no_byte(data):
    try:
        assert decoded(data).data == data
    except OSError:  # such a file is not changed
        assert data.startswith(b"\xff\xfe")


@given(FILES, st.sampled_from(list(presets.PRESETS)))
def test_of_what_a_preset_sets_check_has_nothing_left_to_say(text, name):
    """Neither of a second line, nor of one in a wrong section, nor of one that WSL cannot read."""
    made = presets.settings(presets.PRESETS[name], 64 * GIB, 32)
    try:
        new = changed(text, {s.path: s.value for s in made})
    except CannotSet:
        assert "\r" in text
        return

    parsed = parse(new)
    names = {s.path.rpartition(".")[2].lower() for s in made}
    lines = {e.line for e in parsed.entries if e.name.lower() in names}
    assert [remark for remark in remarks(parsed, 64 * GIB, 32) if remark.line in lines] == []
    assert not names & {e.name.lower() for e in parsed.entries if e.state == "unreadable"}
    assert [parsed.get(s.path) is not None for s in made] == [True] * len(made)


@pytest.mark.parametrize(
    "old",
    [
        "[wsl2]\nmemory=lots\n",
        "[wsl2]\nmemory=8 gb ; half of it\nmemory=4GB\n",
        "memory=8GB\n[wsl2]\n",
        "[experimental]\nmemory=8GB  # here?\n[wsl2]\n",
        '[wsl2]\nmemory="8GB\n',
        "[wsl2]\nmemory: 8GB\n",
    ],
)
def test_what_check_rejects_is_mended(old):
    new = changed(old, {"wsl2.memory": "50GB"})

    assert remarks(parse(old)) != []
    assert remarks(parse(new)) == []
    assert parse(new).get("wsl2.memory") == 50 * GIB
    assert "8" not in new


def test_comments_order_unknown_keys_and_line_ends_stay():
    old = "# mine\r\n[wsl2]\r\nmemory = 50GB   # most of it\r\nfoo=1\r\n\r\n[experimental]\r\nsparseVhd=true\r\n"

    new = changed(old, {"wsl2.memory": "32GB", "wsl2.swap": "8GB", "general.instanceIdleTimeout": "-1"})

    assert new == (
        "# mine\r\n[wsl2]\r\nmemory = 32GB   # most of it\r\nfoo=1\r\nswap=8GB\r\n\r\n[experimental]\r\n"
        "sparseVhd=true\r\n\r\n[general]\r\ninstanceIdleTimeout=-1\r\n"
    )


def test_a_missing_final_newline_is_added_before_new_lines():
    assert changed("[wsl2]\nmemory=8GB", {"experimental.autoMemoryReclaim": "disabled"}) == (
        "[wsl2]\nmemory=8GB\n\n[experimental]\nautoMemoryReclaim=disabled\n"
    )


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("", "[wsl2]\r\nswap=1GB\r\n"),
        ("\n", "\n[wsl2]\nswap=1GB\n"),
        ("# mine", "# mine\n\n[wsl2]\nswap=1GB\n"),
        ("# mine\n", "# mine\n\n[wsl2]\nswap=1GB\n"),
        ("[general]\nx=\\", "[general]\nx=\\\n\n\n[wsl2]\nswap=1GB\n"),
        ("[wsl2]", "[wsl2]\nswap=1GB"),
        ("[wsl2]\nmemory=8GB # all\n\n[general]\n", "[wsl2]\nmemory=8GB # all\nswap=1GB\n\n[general]\n"),
        ("[wsl2]\nswap = 8GB # much\nswap=9GB\n", "[wsl2]\nswap = 1GB # much\n"),
        ("[general]\n  swap=8GB\n[wsl2]\n", "[general]\n[wsl2]\nswap=1GB\n"),
        ("[wsl2 ] x\nswap=8GB\n", "[wsl2 ] x\n\n[wsl2]\nswap=1GB\n"),
    ],
)
def test_a_setting_goes_to_its_section_and_is_not_contradicted(old, new):
    assert changed(old, {"wsl2.swap": "1GB"}) == new


@pytest.mark.parametrize(
    ("value", "written"),
    [("a b", "a b"), (" a", '" a"'), ("a#b", '"a#b"'), ('a"b', r"a\"b"), ("a\\b", r"a\\b"), ("a\tb", r"a\tb")],
)
def test_a_value_is_quoted_where_wsl_would_cut_it(value, written):
    assert encoded(value) == written


def test_an_unknown_key_is_refused():
    with pytest.raises(KeyError):
        changed("", {"wsl2.pageReporting": "true"})


def test_old_files_are_kept_with_their_date_newest_first(tmp_path):
    file = tmp_path / ".wslconfig"
    first, second = decoded(b"[wsl2]\r\nmemory=8GB\r\n"), decoded("\ufeff[wsl2]\n".encode("utf-16-le"))

    assert replace(file, first, NOW) is None
    kept = [replace(file, second, NOW), replace(file, first, NOW + timedelta(microseconds=1))]

    assert [k.name for k in kept] == [".wslconfig.20261121-093005-000000", ".wslconfig.20261121-093005-000001"]
    assert backups(file) == kept[::-1]
    assert kept[0].read_bytes() == file.read_bytes() == first.data
    assert kept[1].read_bytes() == second.data == b"\xff\xfe" + "[wsl2]\n".encode("utf-16-le")


def test_a_file_of_another_name_has_backups_of_its_own(tmp_path):
    mine, other = tmp_path / "night.wslconfig", tmp_path / ".wslconfig"
    for file in (mine, other):
        replace(file, decoded(b"[wsl2]\n"), NOW)
        replace(file, decoded(b"[wsl2]\nmemory=8GB\n"), NOW)

    assert [kept.name for kept in backups(mine)] == ["night.wslconfig.20261121-093005-000000"]
    assert [kept.name for kept in backups(other)] == [".wslconfig.20261121-093005-000000"]


def test_a_link_into_a_folder_of_dotfiles_stays_a_link(tmp_path):
    (tmp_path / "dotfiles").mkdir()
    real, link = tmp_path / "dotfiles/wslconfig", tmp_path / ".wslconfig"
    real.write_text("[wsl2]\n")
    link.symlink_to(real)
    kept = replace(link, decoded(b"[wsl2]\nswap=0\n"), NOW)

    assert link.is_symlink()
    assert real.read_text() == "[wsl2]\nswap=0\n"
    assert kept.parent == tmp_path
    assert kept.read_text() == "[wsl2]\n"


def test_a_file_that_cannot_be_replaced_is_as_it_was(tmp_path):
    folder = tmp_path / "gone"

    with pytest.raises(OSError, match="No such file"):
        replace(folder / ".wslconfig", decoded(b""), NOW)
    assert list(tmp_path.iterdir()) == []


def test_the_presets_are_those_of_the_machine_they_were_tried_on():
    """64 GB and 32 threads, of which Windows shows 63.8 GB."""
    made = {
        name: [s.value for s in presets.settings(preset, int(63.8 * GIB), 32)[:3]]
        for name, preset in presets.PRESETS.items()
    }

    assert made == {
        "training": ["50GB", "24", "20GB"],
        "inference": ["40GB", "20", "16GB"],
        "desktop": ["32GB", "16", "16GB"],
        "max": ["56GB", "28", "24GB"],
    }


@given(st.sampled_from(list(presets.PRESETS)), st.integers(2, 2048), st.integers(1, 512))
def test_a_preset_leaves_windows_enough_memory(name, gigabytes, processors):
    made = presets.settings(presets.PRESETS[name], gigabytes * GIB, processors)
    found = parse(changed("", {s.path: s.value for s in made}))

    assert not any(e.warning for e in found.entries)
    assert found.get("wsl2.memory") <= max((gigabytes - 4) * GIB, gigabytes * GIB // 2)
    assert 1 <= found.get("wsl2.processors") <= processors
    assert all(s.why and s.path.lower() in WSLCONFIG.by_path for s in made)
