"""A configuration that cannot be meant is refused with one line that says where, what and what to do."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wslgpud import config
from wslgpud.config import ConfigError, allowed, declared_keys, load, state_folder
from wslgpud.config.config_files import change, remedy, sample_file, with_keys


def load_text(tmp_path: Path, text: str) -> config.Loaded:
    file = tmp_path / "wslgpud.toml"
    file.write_text(text)
    return load(file, {})


def test_no_file_is_needed(tmp_path: Path) -> None:
    assert load(environ={"HOME": str(tmp_path)}).config == config.Config()


def test_the_sample_file_is_valid_and_changes_nothing(tmp_path: Path) -> None:
    assert load_text(tmp_path, sample_file()).config == config.Config()


def test_every_line_of_the_sample_file_may_be_uncommented(tmp_path: Path) -> None:
    lines = sample_file().splitlines()
    text = "\n".join(line.removeprefix("# ") if " = " in line else line for line in lines)

    assert load_text(tmp_path, text).config == config.Config()


def test_the_environment_overrides_the_file(tmp_path: Path) -> None:
    file = tmp_path / "wslgpud.toml"
    file.write_text("[server]\nport = 1234\naddress = '::1'\n")

    found = load(file, {"WSLGPUD_SERVER__PORT": "4321"})

    assert (found.config.server.port, found.config.server.address) == (4321, "::1")
    assert found.origins == {"server.port": "WSLGPUD_SERVER__PORT", "server.address": str(file)}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[sampling]\ninterval = 2", "unknown key sampling.interval; did you mean sampling.interval_seconds?"),
        ("[severs]\nport = 1", "unknown section [severs]; did you mean server?"),
        ("[server]\nport = 'http'", "server.port must be a whole number, not 'http'"),
        ("[server]\nport = true", "server.port must be a whole number, not True"),
        ("[server]\nport = 70000", "server.port must be between 0 and 65535, not 70000"),
        ("[sampling]\ninterval_seconds = nan", "sampling.interval_seconds must be between 0.1 and 60, not nan"),
        ("[sampling]\ngpu = 'yes'", "sampling.gpu must be true or false, not 'yes'"),
        ("[alerts]\ncommand = 'mail'", "alerts.command must be a list of strings"),
        ("[alerts]\nminimum_level = 'bad'", "must be one of info, warning, critical, emergency"),
        ("server = 3", "server is a section; write [server]"),
        ("[server\nport=1", "not valid TOML"),
        ("[sampling]\ninterval_seconds = 1\nfastest_seconds = 2", "must not exceed sampling.interval_seconds"),
    ],
)
def test_a_mistake_is_named_with_its_place_and_remedy(tmp_path: Path, text: str, complaint: str) -> None:
    if complaint == "alerts.command must be a list of strings":
        text = "[alerts]\ncommand = 3"
    with pytest.raises(ConfigError) as caught:
        load_text(tmp_path, text)

    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named() -> None:
    with pytest.raises(ConfigError, match=r"/nowhere\.toml: No such file"):
        load(Path("/nowhere.toml"), {})


def test_a_variable_missing_an_underscore_is_reported() -> None:
    with pytest.raises(ConfigError, match=r"WSLGPUD_ALERTS_URLS: .*; did you mean WSLGPUD_ALERTS__URLS\?"):
        load(Path("/dev/null"), {"WSLGPUD_ALERTS_URLS": "ntfy://x/y"})


def test_an_inaccessible_folder_is_named_and_not_taken_as_absent(tmp_path: Path) -> None:
    # In place of a folder without permission, which root would not notice: a link that leads nowhere but to
    # xself cannot be looked through by anybody.
    (tmp_path / "wslgpud").symlink_to("wslgpud")

    with pytest.raises(ConfigError, match=r"wslgpud\.toml: Too many levels of symbolic links"):
        load(environ={"XDG_CONFIG_HOME": str(tmp_path)})


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("server.port", ["a whole number", "between 0 and 65535"]),
        ("store.max_bytes", ["a whole number", "at least 20000000"]),
        ("stress.reserve_bytes", ["a whole number", "at least 0"]),
        ("sampling.interval_seconds", ["a number", "between 0.1 and 60"]),
        ("sampling.gpu", ["true or false"]),
        ("server.address", ["text"]),
        ("alerts.urls", ["a list of strings"]),
        ("alerts.language", ['one of "", en, zh']),
    ],
)
def test_the_valid_values_of_a_key_are_told(path: str, said: list[str]) -> None:
    [key] = [key for key in declared_keys() if key.path == path]

    assert [*map(str, allowed(key))] == said


@pytest.mark.parametrize(
    ("uid", "environment", "folder"),
    [
        (0, {"STATE_DIRECTORY": "/var/lib/private/a:/var/lib/b", "HOME": "/root"}, "/var/lib/private/a"),
        (0, {"HOME": "/root"}, "/var/lib/wslgpud"),
        (1, {"HOME": "/home/me", "STATE_DIRECTORY": ""}, "/home/me/.local/state/wslgpud"),
        (1, {"HOME": "/home/me", "XDG_STATE_HOME": "/state"}, "/state/wslgpud"),
        (1, {}, "/.local/state/wslgpud"),
    ],
)
def test_data_goes_to_the_folder_of_systemd_root_or_the_user(
    uid: int, environment: dict[str, str], folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: uid)

    assert state_folder(environment) == Path(folder)


def test_a_variable_with_too_many_underscores_names_no_key() -> None:
    with pytest.raises(ConfigError, match=r"unknown key server\.port__x; did you mean server\.port\?"):
        load(Path("/dev/null"), {"WSLGPUD_SERVER__PORT__X": "1"})


def test_a_list_from_the_environment_is_separated_by_commas() -> None:
    assert load(Path("/dev/null"), {"WSLGPUD_BRAKE__USERS": "me,,you,"}).config.brake.users == ("me", "you")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", '[brake]\nusers = ["me"]\non = true\n'),
        ("[log]\n", '[log]\n\n[brake]\nusers = ["me"]\non = true\n'),
        (
            "[alerts]\n\n  [brake] # x\n# on\n# on = false\nhold_minutes = 5\n\n[log]\n# on = 1\n",
            '[alerts]\n\n  [brake] # x\nusers = ["me"]\n# on\non = true\nhold_minutes = 5\n\n[log]\n# on = 1\n',
        ),
        ("[brake]\n# users = []\n# on = false\non = false\n", '[brake]\nusers = ["me"]\n# on = false\non = true\n'),
    ],
    ids=["no file", "no section", "key in a comment", "key in use"],
)
def test_keys_are_changed_where_they_stand_and_nothing_else_is(before: str, after: str) -> None:
    assert with_keys(before, "brake", {"on": True, "users": ["me"]}) == after


@pytest.mark.parametrize(
    "text",
    [
        '[brake]\nafter_hold = """\non = 1\n"""\n',
        '[brake]\non = [\n "a"\n]\n',
        "brake.on = false\n",
        '[brake]\n"on" = 1\n',
    ],
    ids=["in a text", "over several lines", "dotted", "quoted"],
)
def test_what_only_a_person_can_change_is_left_to_one(text: str) -> None:
    with pytest.raises(ValueError, match=r"^\[brake\] is written in a way that only a person can change$"):
        with_keys(text, "brake", {"on": True})


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("[alerts]\nurlz = 1\n", "unknown key alerts.urlz; did you mean alerts.urls?"),
        ("brake = 3\n", "brake is a section; write [brake] and its keys below"),
        ("[log]\nlevel = \n", "not valid TOML: Invalid value (at line 2, column 9)"),
    ],
)
def test_a_fault_in_a_file_to_be_changed_is_named(tmp_path: Path, text: str, fault: str) -> None:
    file = tmp_path / "wslgpud.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        change(file, "brake", {"on": True})

    assert str(caught.value) == f"{file}: {fault}"
    assert file.read_text() == text


def test_a_changed_file_keeps_its_mode_and_a_new_one_is_private(tmp_path: Path) -> None:
    old, new = tmp_path / "old.toml", tmp_path / "new" / "wslgpud.toml"
    old.touch()
    old.chmod(0o604)
    for file in (old, new):
        change(file, "brake", {"on": True})
        assert load(file, {}).config.brake.on

    assert old.stat().st_mode & 0o777 == 0o604
    assert new.stat().st_mode & 0o007 == 0
    assert new.parent.stat().st_mode & 0o7777 == 0o750


@pytest.mark.parametrize(("uid", "handed"), [(0, [(7, 8)]), (1000, [])])
def test_root_leaves_a_file_that_he_changes_to_its_owner(
    uid: int, handed: list[tuple[int, int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, given = tmp_path / "theirs.toml", []
    file.touch()
    facts = os.stat_result((0o100640, 0, 0, 1, 7, 8, 0, 0, 0, 0))
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    monkeypatch.setattr(os, "fchown", lambda _, user, group: given.append((user, group)))
    with monkeypatch.context() as theirs:
        real = type(file).stat
        theirs.setattr(type(file), "stat", lambda path, **how: facts if path == file else real(path, **how))
        change(file, "brake", {"on": True})

    assert given == handed
    assert file.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize(
    ("uid", "command"),
    [
        (0, "sudo chown root:wslgpud {file} && sudo chmod 640 {file}"),
        (1, "chmod 600 {file}"),
        (1000, "chmod 600 {file}"),
    ],
)
def test_the_remedy_closes_a_file_but_lets_the_service_read_it(
    uid: int, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = os.stat_result((0o100644, 0, 0, 1, uid, 0, 0, 0, 0, 0))
    file = tmp_path / "wslgpud.toml"
    monkeypatch.setattr(type(file), "stat", lambda _: facts)

    assert remedy(file) == command.format(file=file)


def test_every_key_has_help_that_is_more_than_its_name() -> None:
    assert [k.path for k in declared_keys() if len(k.help) < 12] == []


@pytest.mark.slow
@settings(deadline=None)  # loads the configuration once for each key
@given(st.text())
def test_any_text_is_either_read_or_refused_in_one_line(text: str) -> None:
    for key in declared_keys():
        try:
            load(Path("/dev/null"), {key.environment: text})
        except ConfigError as error:
            assert len(str(error).splitlines()) == 1
