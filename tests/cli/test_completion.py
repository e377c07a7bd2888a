"""Tab completes commands, options, and what this machine has: rules, metrics, incidents, stress runs."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.daemons import clean_environment, daemon, eventually, wslgpud
from tests.support.terminals import Terminal

PROGRAM = Path(sys.executable).parent / "wslgpud"
SHARE = Path(__file__).parents[2] / "deploy/share"


def completed(line: str, home: Path) -> list[str]:
    """Return what bash would offer at the end of a line, and for which words it would list files."""
    words = line.split(" ")
    asked = {"_WSLGPUD_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    environment = {**clean_environment(home), **asked, "STATE_DIRECTORY": str(home)}
    done = subprocess.run([PROGRAM], env=environment, capture_output=True, text=True, check=True)
    return [line.removeprefix("plain,") for line in done.stdout.split()]


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("wslgpud st", ["status", "stress"]),
        ("wslgpud stress com", ["compare"]),
        ("wslgpud guard --ins", ["--inside"]),
        (
            "wslgpud alerts explain training",
            ["training_leak", "training_length", "training_retries", "training_slowed"],
        ),
        ("wslgpud history gpu_memory_us", ["gpu_memory_used_bytes"]),
        ("wslgpud incidents ", []),  # no daemon answers
        ("wslgpud history --across m", ["mean", "max", "min"]),
        ("wslgpud service install --extra app", ["apprise"]),
        ("wslgpud status --config /et", ["file,/et"]),
        ("wslgpud fit ./mod", ["file,./mod"]),
        ("wslgpud guard ma", ["file,ma"]),
    ],
)
def test_what_is_offered_begins_with_what_was_typed(line: str, found: list[str], tmp_path: Path) -> None:
    assert completed(line, tmp_path) == found


@pytest.mark.slow
def test_incidents_are_offered_by_number_if_a_daemon_answers(tmp_path: Path) -> None:
    with daemon(tmp_path) as killed:
        eventually(lambda: killed.samples().get("wslgpud_ticks_total", 0) > 3, "some samples")
        killed.end(signal.SIGKILL)
    with daemon(tmp_path) as running:
        incidents = eventually(lambda: running.status().get("incidents"), "the report of how that ended")

        # what else happens on the machine meanwhile may be one, too
        assert {str(incident["id"]) for incident in incidents} <= set(completed("wslgpud incidents ", running.state))
        assert completed("wslgpud incidents 999", running.state) == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_understands_its_script(shell: str, tmp_path: Path) -> None:
    done = wslgpud("--show-completion", shell, home=tmp_path)

    assert done.returncode == 0, done.stderr
    assert "_WSLGPUD_COMPLETE" in done.stdout
    if program := shutil.which(shell):
        assert subprocess.run([program, "-n"], input=done.stdout, text=True, check=False).returncode == 0


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")
def test_bash_itself_completes(tmp_path: Path) -> None:
    """The function that bash calls on Tab, in a bash that has loaded it."""
    script = (
        'eval "$(wslgpud --show-completion bash)"; COMP_WORDS=(wslgpud alerts expl); COMP_CWORD=2;'
        ' _wslgpud_completion wslgpud; echo "${COMPREPLY[@]}"'
    )
    environment = {**clean_environment(tmp_path), "PATH": f"{PROGRAM.parent}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, check=True)

    assert done.stdout == "explain\n"


@pytest.mark.skipif(shutil.which("fish") is None, reason="there is no fish here")
def test_fish_itself_completes(tmp_path: Path) -> None:
    folder = tmp_path / "fish/vendor_completions.d"
    folder.mkdir(parents=True)
    shutil.copy(SHARE / "fish/vendor_completions.d/wslgpud.fish", folder)
    named = {"PATH": f"{PROGRAM.parent}:{os.environ['PATH']}", "XDG_DATA_DIRS": str(tmp_path)}
    asked = ["fish", "-c", 'complete -C "wslgpud alerts explain training_le"']
    environment = {**clean_environment(tmp_path), **named}
    done = subprocess.run(asked, env=environment, capture_output=True, text=True, check=True)

    assert done.stdout == "training_leak\ntraining_length\n"


@pytest.mark.slow
@pytest.mark.skipif(not (shutil.which("zsh") and shutil.which("tmux")), reason="there is no zsh or tmux here")
def test_zsh_itself_completes_at_the_first_tab(tmp_path: Path) -> None:
    """The file is what zsh calls then: if it only declared who completes, that Tab would do nothing."""
    setup = (
        f"fpath+={shlex.quote(str(SHARE / 'zsh/site-functions'))}; autoload -Uz compinit; compinit -u; PS1='ready> '"
    )
    (tmp_path / ".zshrc").write_text(setup)
    path = {"PATH": f"{PROGRAM.parent}:{os.environ['PATH']}", "ZDOTDIR": str(tmp_path)}
    with Terminal(["zsh", "-i"], tmp_path, environment=path) as terminal:
        terminal.until("ready>")
        terminal.keys("wslgpud alerts explain training_lea", "Tab")
        terminal.until("training_leak")
