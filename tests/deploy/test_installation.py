"""A user's service from its installation to its removal, with systemd's answers and all files below one folder."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

import wslgpud
from wslgpud.service import install as installing
from wslgpud.service import release, systemctl
from wslgpud.service.changes import Changes, ServiceError
from wslgpud.service.install import NotStarted, Options, install, uninstall
from wslgpud.service.places import SYSTEM, places
from wslgpud.words import MessageError

#: a program whose configuration is fine unless a file says that it is not
PROGRAM = """#!/bin/sh
case "$1 $2" in "config init") mkdir -p "${3%/*}" && : > "$3" ;; "config check") [ ! -s "$4" ] ;; esac
"""
#: starts every version but 9.9
SYSTEMCTL = """#!/bin/sh
echo "$*" >> "$HOME/asked"
case "$*" in
*is-enabled*) [ -e "$HOME/enabled" ] ;;
*is-active*) [ -e "$HOME/active" ] ;;
*"enable --quiet"*) : > "$HOME/enabled" ;;
*restart*) case "$(readlink "$HOME/.local/share/wslgpud")" in */9.9-*) exit 1 ;; *) : > "$HOME/active" ;; esac ;;
esac
"""
FIRST = """\
make ~/.local/share/wslgpud.releases/RELEASE: an environment of /usr/bin/python3 with this program, plots
~/.local/share/wslgpud.releases/RELEASE/bin/wslgpud config init ~/.config/wslgpud/wslgpud.toml
write ~/.config/systemd/user/wslgpud.service
systemctl --user daemon-reload
ln -sfn ~/.local/share/wslgpud.releases/RELEASE ~/.local/share/wslgpud
ln -sfn ~/.local/share/wslgpud/bin/wslgpud ~/.local/bin/wslgpud
systemctl --user enable --quiet wslgpud.service
systemctl --user reset-failed 'wslgpud*'
systemctl --user restart wslgpud.service
"""


class Home:
    def __init__(self, folder: Path) -> None:
        self.folder, self.places = folder, places(user=True)

    def installs(self, *extras: str, dry: bool = False) -> str:
        """Install, and return the changes: one a line, with the home as ``~`` and the release's name as ``RELEASE``."""
        changes = Changes(dry=dry)
        install(Options(extras), self.places, changes)
        return self.said(changes)

    def said(self, changes: Changes) -> str:
        said = "\n".join([*changes.descriptions, ""]).replace(str(self.folder), "~")
        for kept in self.places.releases.glob("*-*"):
            said = said.replace(kept.name, "RELEASE")
        return said

    def restarts(self) -> int:
        """Return how often systemd was asked to restart the daemon since the last time."""
        asked = self.folder / "asked"
        count = asked.read_text().count("restart")
        asked.write_text("")
        return count


def _make(new: Path, *_: object) -> None:
    for file, text in (("bin/wslgpud", PROGRAM), ("share/man/man1/wslgpud.1", "a page"), ("complete", "")):
        (new / file).parent.mkdir(parents=True, exist_ok=True)
        (new / file).write_text(text)
    (new / "bin/wslgpud").chmod(0o755)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    programs = tmp_path / "programs"
    programs.mkdir()
    for name, text in (("systemctl", SYSTEMCTL), ("journalctl", "#!/bin/sh\necho its last words\n"), ("loginctl", "")):
        (programs / name).write_text(text or "#!/bin/sh\necho yes\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(programs), prepend=os.pathsep)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(systemctl, "_RUNS", tmp_path)
    monkeypatch.setattr(installing, "generation", lambda _: None)
    monkeypatch.setattr(release, "interpreter", lambda _: Path("/usr/bin/python3"))
    monkeypatch.setattr(release, "needed", lambda *_: {})
    monkeypatch.setattr(release, "make", _make)
    return Home(tmp_path)


def test_a_dry_run_lists_all_installation_steps_and_does_nothing(home: Home) -> None:
    told = home.installs("plots", dry=True)
    assert not home.places.releases.exists()
    assert not home.places.configuration.exists()
    done = home.installs("plots")

    shared = "ln -sfn ~/.local/share/wslgpud/share/man/man1/wslgpud.1 ~/.local/share/man/man1/wslgpud.1\n"
    assert done == f"{FIRST}{shared}write ~/.local/share/wslgpud.releases/extras\n"
    name = home.places.running.name  # type: ignore[union-attr]
    assert told.replace(name, "RELEASE") == f"{FIRST}write ~/.local/share/wslgpud.releases/extras\n"
    assert (home.places.share / "man/man1/wslgpud.1").read_text() == "a page"
    assert home.places.extras.read_text() == "plots\n"
    assert home.restarts() == 1


def test_an_installation_answers_with_the_version_that_runs(home: Home) -> None:
    assert install(Options(), home.places, Changes(dry=False)) == wslgpud.__version__


def test_torch_for_the_nightly_test_is_installed_only_on_request(home: Home) -> None:
    assert "with torch" in home.installs("stress", dry=True)
    assert "with torch" not in home.installs(dry=True)


@pytest.mark.parametrize(("told", "kept"), [("present", True), ("absent", False), (None, False)])
def test_the_keep_alive_task_exists_only_if_windows_says_so(
    monkeypatch: pytest.MonkeyPatch, told: str | None, *, kept: bool
) -> None:
    def does(*_: object) -> str:
        if told is None:
            raise MessageError("Windows cannot be reached")
        return told

    monkeypatch.setattr("wslgpud.probes.interop.keep_alive", does)
    assert installing.keeps_alive() is kept


@pytest.mark.parametrize(("python", "is_kept"), [("/usr/bin/python3", True), ("/usr/bin/python3.14", False)])
def test_a_release_that_installs_itself_is_not_made_again(
    home: Home, monkeypatch: pytest.MonkeyPatch, python: str, *, is_kept: bool
) -> None:
    home.installs()
    monkeypatch.setattr("sys.prefix", str(home.places.running))
    monkeypatch.setattr(wslgpud, "__version__", "9.8")
    monkeypatch.setattr(release, "own_interpreter", lambda: Path(python))

    assert (home.installs() == "") is is_kept


@pytest.mark.parametrize(("wsl", "more"), [(None, []), (2, ["wsl"])])
def test_earlier_permissions_stay_if_this_version_knows_them(
    home: Home, monkeypatch: pytest.MonkeyPatch, wsl: int | None, more: list[str]
) -> None:
    monkeypatch.setattr(installing, "generation", lambda _: wsl)
    machines = replace(SYSTEM, units=home.folder)
    machines.drop_ins.mkdir()
    for name in ("brake", "of-an-earlier-version"):
        (machines.drop_ins / f"wslgpud-{name}.conf").touch()

    granted = installing.drop_ins(["home"], machines)
    assert [path.name for path in granted] == [f"wslgpud-{name}.conf" for name in ("brake", "home", *more)]
    assert all("[Service]" in text for text in granted.values())
    assert installing.drop_ins(["home"], home.places) == {}


def test_a_service_that_apt_installed_is_left_to_apt(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    unit = home.folder / "wslgpud.service"
    unit.touch()
    monkeypatch.setattr("wslgpud.service.places._PACKAGED_UNIT", unit)
    with pytest.raises(ServiceError, match=r"the package wslgpud is installed: apt upgrades and removes it"):
        install(Options(), SYSTEM, Changes(dry=True))
    for purge, command in ((False, "remove"), (True, "purge")):
        with pytest.raises(ServiceError, match=f"'sudo apt {command} wslgpud' removes it"):
            uninstall(SYSTEM, Changes(dry=True), purge=purge)
    monkeypatch.setattr("sys.prefix", "/usr/lib/wslgpud")
    with pytest.raises(ServiceError, match=r"takes no extra but stress; for otlp: "):
        install(Options(["stress", "plots", "otlp"]), SYSTEM, Changes(dry=True))
    machines = replace(SYSTEM, program=home.folder / "opt")
    for extras, asked in (((), False), (["stress"], True)):
        changes = Changes(dry=True)
        assert install(Options(extras), machines, changes) == wslgpud.__version__
        assert any("with torch" in one for one in changes.descriptions) is asked
    assert not home.places.packaged


def test_a_missing_or_silent_systemd_is_reported_with_a_remedy(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    (home.folder / "programs/systemctl").write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(ServiceError, match=r"your systemd does not answer .* libpam-systemd, dbus-user-session"):
        home.installs()
    monkeypatch.setattr(systemctl, "_RUNS", home.folder / "none")
    for wsl, said in (
        (2, r"put systemd=true below \[boot\] .* without it \./deploy/run starts the daemon in the foreground$"),
        (None, r"^systemd does not run here; \./deploy/run starts the daemon without it$"),
    ):
        monkeypatch.setattr(systemctl, "generation", lambda _, wsl=wsl: wsl)
        with pytest.raises(ServiceError, match=said):
            home.installs()


def test_what_is_installed_is_left_alone_unless_it_does_not_run(home: Home) -> None:
    home.installs("plots")
    home.restarts()

    assert home.installs() == ""
    assert home.restarts() == 0
    (home.folder / "active").unlink()
    assert home.installs() == "systemctl --user reset-failed 'wslgpud*'\nsystemctl --user restart wslgpud.service\n"


def test_an_upgrade_keeps_the_extras_and_removes_the_old_release(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    home.installs("plots")
    before = home.places.running
    monkeypatch.setattr(wslgpud, "__version__", "9.8")
    (home.places.units / "wslgpud.service").write_text("the unit of the earlier version")

    assert "with this program, plots\n" in home.installs()
    assert home.places.running is not None
    assert home.places.running.name.startswith("9.8-")
    assert [path for path in home.places.releases.iterdir() if path.is_dir()] == [home.places.running]
    assert before != home.places.running
    assert home.restarts() == 2


def test_a_version_that_does_not_start_leaves_the_old_running(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    home.installs()
    before = home.places.running
    unit = home.places.units / "wslgpud.service"
    unit.write_text("the unit of the earlier version")
    monkeypatch.setattr(wslgpud, "__version__", "9.9")
    with pytest.raises(NotStarted, match=r"the new version does not start, .* the previous one runs again") as failed:
        home.installs()

    assert failed.value.last_words == "its last words\n"
    assert home.places.running == before
    assert unit.read_text() == "the unit of the earlier version"


def test_a_first_version_that_fails_to_start_shows_why(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wslgpud, "__version__", "9.9")
    with pytest.raises(NotStarted, match=r"^wslgpud does not start; see its log above$") as failed:
        home.installs()

    assert failed.value.last_words == "its last words\n"


def test_a_refused_configuration_stops_an_upgrade_before_changes(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    home.installs()
    before = home.places.running
    home.places.configuration.write_text("refused")
    monkeypatch.setattr(wslgpud, "__version__", "9.8")
    with pytest.raises(ServiceError, match=r"^fix the configuration first, nothing else was changed: "):
        home.installs()

    assert home.places.running == before


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (Options(extras=["plot"]), r"there is no plot: one of apprise, otlp, parquet, plots,"),
        (Options(allowed=["hom"]), r"there is no hom: one of brake, desktop, home, return-cache, save-signal, wsl"),
    ],
)
def test_an_unknown_option_is_refused_with_the_valid_ones_listed(home: Home, options: Options, said: str) -> None:
    with pytest.raises(ServiceError, match=said):
        install(options, home.places, Changes(dry=True))


def test_a_change_that_the_system_refuses_is_named_with_why(home: Home) -> None:
    home.places.units.parent.mkdir(parents=True)
    home.places.units.touch()  # a file where a folder should be
    with pytest.raises(ServiceError, match=r"^could not write \S+/systemd/user/wslgpud\.service: File exists$"):
        home.installs()


def test_a_linked_folder_of_units_is_followed(home: Home) -> None:
    """As a manager of dotfiles makes it."""
    kept = home.folder / "dotfiles/user"
    kept.mkdir(parents=True)
    home.places.units.parent.mkdir(parents=True)
    home.places.units.symlink_to(kept)
    home.installs()

    assert (kept / "wslgpud.service").exists()


def test_the_packages_service_is_started_if_it_does_not_run(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    machines = replace(SYSTEM, program=home.folder / "opt", units=home.folder / "units")
    monkeypatch.setattr(installing, "require", lambda *_: None)
    monkeypatch.setattr("wslgpud.service.places._PACKAGED_UNIT", home.folder)
    install(Options(), machines, Changes(dry=False))
    first = (home.folder / "asked").read_text()
    install(Options(), machines, Changes(dry=False))

    units = "wslgpud.service wslgpud-stress.socket"
    assert f"enable --quiet {units}\n" in first
    assert f"restart {units}\n" in first
    assert (home.folder / "asked").read_text().count("restart") == 1


@pytest.mark.parametrize("purge", [False, True])
def test_a_removal_keeps_data_and_configuration_unless_asked(home: Home, *, purge: bool) -> None:
    home.installs("plots")
    home.places.data.mkdir(parents=True)
    kept = uninstall(home.places, Changes(dry=False), purge=purge)

    left = {str(path.relative_to(home.folder)) for path in home.folder.rglob("*wslgpud*")}
    ours = {".config/wslgpud", ".config/wslgpud/wslgpud.toml", ".local/state/wslgpud"}
    assert (kept, left) == (([], set()) if purge else ([home.places.settings, home.places.data], ours))
    assert "disable --quiet --now wslgpud.service\n" in (home.folder / "asked").read_text()


def test_a_command_that_is_not_ours_stays(home: Home) -> None:
    home.places.command.parent.mkdir(parents=True)
    home.places.command.symlink_to("/usr/bin/somebody-elses")
    home.installs()
    uninstall(home.places, Changes(dry=False), purge=True)

    assert home.places.command.is_symlink()


def test_settings_private_to_root_and_the_service_stay_private(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    machines = replace(SYSTEM, settings=home.folder / "etc")
    machines.settings.mkdir(mode=0o750)
    machines.configuration.touch()
    machines.configuration.chmod(0o640)
    monkeypatch.setattr(installing, "make_accounts", lambda _: None)
    monkeypatch.setattr(Path, "owner", lambda _: "root")
    monkeypatch.setattr(Path, "group", lambda _: "wslgpud")

    def changes() -> list[str]:
        made = Changes(dry=True)
        installing.prepare(Path("/opt/wslgpud"), machines, made)
        return made.descriptions

    assert changes() == []
    machines.configuration.chmod(0o644)
    assert changes() == [f"chown root:wslgpud {machines.configuration}", f"chmod 640 {machines.configuration}"]


def test_the_system_service_gets_accounts_in_the_existing_groups(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    groups = {"systemd-journal": [], "video": ["wslgpud"]}
    monkeypatch.setattr(installing, "account_exists", lambda _: False)
    monkeypatch.setattr("grp.getgrnam", lambda name: SimpleNamespace(gr_mem=groups[name]))
    monkeypatch.setenv("SUDO_USER", "me")
    changes = Changes(dry=True)
    program, settings = home.folder / "opt/wslgpud", home.folder / "etc"
    installing.prepare(program, replace(SYSTEM, program=program, settings=settings), changes)

    useradd = "useradd --system --user-group --no-create-home --shell /usr/sbin/nologin --home-dir"
    assert home.said(changes).splitlines() == [
        f"{useradd} /var/lib/wslgpud wslgpud",
        "usermod --append --groups systemd-journal wslgpud",
        f"{useradd} /nonexistent wslgpud-stress",
        "usermod --append --groups video wslgpud-stress",
        "usermod --append --groups wslgpud me",
        "install -d -o root -g wslgpud -m 750 ~/etc",
        "~/opt/wslgpud config init ~/etc/wslgpud.toml",
        "chown root:wslgpud ~/etc/wslgpud.toml",
        "chmod 640 ~/etc/wslgpud.toml",
    ]
