"""Manual pages are made of what ``--help`` and the configuration say, and every reader of such pages takes them."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import click
import pytest

from tests.docs import man
from wslgpud import config
from wslgpud.cli import COMMANDS, app
from wslgpud.cli import help as helps

REPOSITORY = Path(__file__).parents[2]
COMMITTED = REPOSITORY / "deploy/share"
PAGES = man.pages()
#: no date, on purpose: see tests/docs/man.py
FORGIVEN = re.compile(r"WARNING: missing date, using \"\": TH")


def needs(program: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(program) is None, reason=f"there is no {program} here")


def plain(name: str) -> str:
    """Return a page's text on one line, without troff markup."""
    text = re.sub(r"^\.\w\w ?|\\f[BIR]|\\:|\\&", "", PAGES[name], flags=re.MULTILINE)
    for sign, meant in ((r"\-", "-"), (r"\(aq", "'"), (r"\(ga", "`"), (r"\(ha", "^"), (r"\(ti", "~"), (r"\(dq", '"')):
        text = text.replace(sign, meant)
    return " ".join(text.replace(r"\(rs", "\\").split())


def commands(command: click.Command) -> list[click.Command]:
    below = getattr(command, "commands", {}).values()
    return [command, *(one for each in below for one in commands(each))]


def test_what_the_wheel_brings_is_what_is_made_of_the_commands() -> None:
    """After a change: ./tests/renew."""
    found = {str(file.relative_to(COMMITTED)): file.read_text() for file in COMMITTED.rglob("*") if file.is_file()}

    assert found.keys() == man.files().keys()
    assert [name for name, text in man.files().items() if found[name] != text] == []


def test_the_wheel_is_told_to_bring_them() -> None:
    tomllib = pytest.importorskip("tomllib")
    wheel = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]

    assert wheel["shared-data"] == {"deploy/share": "share"}


def test_every_command_has_a_page_in_each_language() -> None:
    names = {"man1/wslgpud.1", "man5/wslgpud.toml.5", *(f"man1/wslgpud-{name}.1" for name in COMMANDS)}

    assert set(PAGES) == {f"{folder}/{name}" for folder in man.FOLDERS.values() for name in names}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_page_says_all_that_the_help_says(name: str) -> None:
    text = plain(f"man/man1/wslgpud-{name}.1")
    for command in commands(app.commands[name]):
        doc = helps.doc_of(command)
        options = (option for param in command.params if param.param_type_name == "option" for option in param.opts)
        said = [*doc.paragraphs, *(line for line, _ in doc.examples), *(what for _, what in doc.examples)]
        said += [param.help for param in command.params if param.help] + list(options)
        assert [one for one in said if " ".join(one.split()) not in text] == []


def test_the_configurations_page_has_every_key_with_its_default() -> None:
    text = plain("man/man5/wslgpud.toml.5")

    assert [key.path for key in config.declared_keys() if f"{key.name} = " not in text or key.help not in text] == []
    assert 'language = ""' in text
    assert 'one of "", en, zh' in text
    assert "between 0.1 and 60" in text


@needs("mandoc")
def test_mandoc_finds_nothing_wrong() -> None:
    files = [COMMITTED / name for name in PAGES]
    done = subprocess.run(
        ["mandoc", "-T", "lint", "-W", "warning", *files], capture_output=True, text=True, check=False
    )

    assert [line for line in done.stdout.splitlines() if not FORGIVEN.search(line)] == []
    assert done.stderr == ""


@needs("groff")
@pytest.mark.parametrize("name", PAGES)
def test_groff_finds_nothing_wrong_and_the_page_fits_a_terminal(name: str) -> None:
    # -K: the Chinese pages are UTF-8, and -mzh has lines end between any two characters. -P: without bold type.
    chinese = ["-mzh"] if "zh_CN" in name else []
    command = ["groff", *chinese, "-man", "-K", "utf8", "-T", "utf8", "-ww", "-rLL=78n", "-P-cbou", COMMITTED / name]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", check=False)

    assert (done.returncode, done.stderr) == (0, "")
    assert [line for line in done.stdout.splitlines() if helps.cells(line) > 80] == []


@needs("lexgrog")
def test_apropos_finds_each_page_by_what_it_is_for() -> None:
    files = [COMMITTED / name for name in PAGES]
    done = subprocess.run(["lexgrog", *files], capture_output=True, encoding="utf-8", check=False)
    found = re.findall(r': "wslgpud[\w.-]* - [^\\"]+"$', done.stdout, re.MULTILINE)

    assert done.returncode == 0, done.stderr
    assert len(found) == len(PAGES), done.stdout
