"""The documentation is true: tables are generated, commands are run, keys and links exist."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import time
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from tests.docs import commands, tables
from tests.support.film import film_svg
from tests.support.pictures import monitor_svg, status_svg
from wslgpud import config
from wslgpud.app.catalogue import catalogue
from wslgpud.cli import app

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
TOP = ("README.md", "README.zh.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")
FOLDERS = ("wslgpud", "deploy", "grafana", "tests/bench")
PAGES = [ROOT / name for name in TOP] + sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.md"))
MODULES = ("wslgpud", "deploy", "grafana", "tests")
STORY_BYTES = 150_000


def test_every_table_in_the_docs_is_generated_from_its_source() -> None:
    """After a change: ./tests/renew."""
    tabled = {page: tables.found((ROOT / page).read_text()) for page in tables.PAGES}
    there = {name: table for found in tabled.values() for name, table in found.items()}
    made = {name: make() for name, make in tables.TABLES.items()}
    assert there == made
    for page in tables.PAGES:
        by_hand = re.sub(r"<!-- \w+: generated.*?<!-- end -->", "", (ROOT / page).read_text(), flags=re.DOTALL)
        assert re.findall(r"^\|.*", by_hand, re.MULTILINE) == [], page


def test_the_readme_is_short_and_starts_with_both_commands() -> None:
    lines = README.splitlines()

    assert len(lines) <= 250
    assert "./deploy/run" in "\n".join(lines[:30])
    assert "./tests/run" in "\n".join(lines[:30])


def _bones(page: str) -> dict[str, object]:
    """Return the parts of a page that are the same in every language."""
    fences = re.findall(r"^```.*?^```$", page, re.MULTILINE | re.DOTALL)
    prose = re.sub(r"^```.*?^```$|<!-- .*?<!-- end -->", "", page, flags=re.MULTILINE | re.DOTALL)
    targets = re.findall(r"\]\(([^)]+)\)", prose)
    return {
        "headings": [len(marks) for marks in re.findall(r"^(#+) ", prose, re.MULTILINE)],
        "boxes": [re.sub(r"(?m)\s+#.*$", "", fence) for fence in fences],
        "links": sorted(t for t in targets if not t.startswith(("#", "README."))),
        "jumps": len([t for t in targets if t.startswith("#")]),
        "code": sorted(set(re.findall(r"`([^`]+)`", prose))),
        "points": len(re.findall(r"^- ", prose, re.MULTILINE)),
        "paragraphs": len(re.findall(r"\S\n\n", prose)),
    }


def test_the_readme_in_chinese_says_the_same() -> None:
    assert _bones((ROOT / "README.zh.md").read_text()) == _bones(README)


def test_each_claim_of_the_security_page_names_an_existing_test() -> None:
    page = (ROOT / "SECURITY.md").read_text()
    _, _, *rows = re.findall(r"^\|.*", page, re.MULTILINE)
    named = [re.search(r"`(tests/[\w/]+\.py)` `(test_\w+)` \|$", row) for row in rows]

    assert "(SECURITY.md)" in README
    assert len(rows) > 5
    assert [row for row, test in zip(rows, named, strict=True) if test is None] == []
    for test in filter(None, named):
        assert f"def {test[2]}(" in (ROOT / test[1]).read_text(), test[0]


def _drawn(name: str, picture: str) -> None:
    """Compare a picture with its source; with WSLGPUD_RENEW (./tests/renew), write it first."""
    file = ROOT / "deploy/pictures" / name
    if os.environ.get("WSLGPUD_RENEW"):
        file.write_text(picture)

    assert file.read_text() == picture


@pytest.fixture
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make it the time zone: pictures show the reader's own."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("utc")
def test_the_readmes_live_view_is_what_monitor_really_draws() -> None:
    """Recorded on an NVIDIA H200 on 2026-11-21 by on_a_real_card.py."""
    _drawn("monitor.svg", monitor_svg(json.loads((ROOT / "tests/gpu/monitor-warning.json").read_text())))


def test_the_readmes_status_picture_is_what_status_really_prints() -> None:
    """Recorded on an NVIDIA H200 on 2026-11-21 by on_a_real_card.py."""
    _drawn("status.svg", status_svg(json.loads((ROOT / "tests/gpu/status-warning.json").read_text())))


@pytest.mark.parametrize(
    ("story", "picture", "title"),
    [
        ("story.json", "story.svg", "wslgpud from its installation to the report after a power cut"),
        ("brake_story.json", "brake.svg", "A training grows, is paused before memory runs out, resumes and finishes"),
    ],
)
def test_a_film_is_what_the_terminal_of_a_real_machine_has_shown(story: str, picture: str, title: str) -> None:
    """Recorded by ``WSLGPUD_RENEW=1 ./tests/run -n0 tests/vm/test_story.py``, ``python -m tests.vm.brake_story``."""
    drawn = film_svg(json.loads((ROOT / "tests/vm" / story).read_text()), title)
    _drawn(picture, drawn)

    assert len(drawn.encode()) < STORY_BYTES


@pytest.mark.parametrize("page", commands.PAGES)
def test_every_command_that_a_page_shows_is_run_by_a_test(page: str) -> None:
    for command in commands.commands(page):
        if command in commands.ELSEWHERE:
            file, _, name = commands.ELSEWHERE[command].partition("::")
            tests = {node.name for node in ast.walk(ast.parse((ROOT / file).read_text())) if hasattr(node, "name")}
            assert name in tests, f"{command!r} is said to be run by {name}, which is not in {file}"
        else:
            assert command in commands.typed() or command in commands.CANNOT


def test_no_command_is_excused_that_no_page_shows() -> None:
    shown = {command for page in commands.PAGES for command in commands.commands(page)}

    assert {*commands.ELSEWHERE, *commands.CANNOT} - shown == set()


def _known(words: list[str]) -> str:
    """Return what is wrong with a command line of ours; empty if its commands and options exist."""
    command: click.Command = app
    options: set[str] = set()
    for word in words:
        if word == "--":
            break
        found = getattr(command, "commands", {})
        if word in found:
            command = found[word]
        elif found and getattr(command, "no_args_is_help", False) and not word.startswith("-"):
            return f"there is no command {word}"
        options |= {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
        if word.startswith("--") and word.partition("=")[0] not in {*options, "--help", "--version"}:
            return f"there is no option {word}"
    return ""


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_command_in_the_docs_exists_with_its_options(path: Path) -> None:
    text = path.read_text()
    lines = [m[1] for m in re.finditer(r"^(?:sudo )?(wslgpud .*?)(?:\s+#.*)?$", text, re.MULTILINE)]
    lines += [m[1] for m in re.finditer(r"`(?:sudo )?(wslgpud [^`]+)`", text)]

    assert {line: wrong for line in lines if (wrong := _known(shlex.split(line)[1:]))} == {}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_configuration_example_in_the_docs_is_valid(path: Path, tmp_path: Path) -> None:
    for number, block in enumerate(re.findall(r"^```toml\n(.*?)^```$", path.read_text(), re.MULTILINE | re.DOTALL)):
        file = tmp_path / f"{number}.toml"
        file.write_text(block)
        config.load(file, {})


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_somewhere(path: Path) -> None:
    text = path.read_text()
    places = {
        re.sub(r"[^\w -]", "", m[1]).strip().lower().replace(" ", "-")
        for m in re.finditer(r"^#+ (.*)", text, re.MULTILINE)
    }
    files = re.findall(r"\]\((?!http|#)([^)#]+)", text)
    jumps = re.findall(r"\]\(#([^)]+)\)", text)

    assert [target for target in files if not (path.parent / target).exists()] == []
    assert set(jumps) <= places


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_module_that_a_page_names_is_there(path: Path) -> None:
    text = re.sub(r"^```diff.*?^```$", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    named = set(re.findall(r"`((?:[\w-]+/)*\w+\.py)`", text)) if path.name != "CHANGELOG.md" else set()
    known = {file.as_posix() for folder in MODULES for file in (ROOT / folder).rglob("*.py")}

    assert {name for name in named if not any(file.endswith(f"/{name}") for file in known)} == set()


def test_every_metric_says_what_it_means_in_sentences() -> None:
    assert [spec.name for spec in catalogue() if not re.fullmatch(r"[A-Z0-9].* .*\.", spec.help)] == []
