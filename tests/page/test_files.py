"""The page's files: small, whole, ours or as their authors made them, and sent so that browsers guard."""

from __future__ import annotations

import gzip
import hashlib
import http.client
import re

import pytest

from tests.words.catalogue import templates
from wslgpud.serve import routes
from wslgpud.words import TEMPLATES

FILES = sorted(path for path in routes.FOLDER.iterdir() if path.suffix in routes.TYPES)
OURS = [path for path in FILES if path.suffix == ".js" and not path.name.startswith("uPlot")]
BUDGET_BYTES = 150_000


def fetch(stage, path, **headers):
    connection = http.client.HTTPConnection("127.0.0.1", stage.port, timeout=60)
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    answer.content = answer.read()
    connection.close()
    return answer


def test_all_of_it_is_small(stage):
    names = ["/", *(f"/static/{path.name}" for path in FILES)]
    sizes = {name: len(fetch(stage, name, **{"Accept-Encoding": "gzip"}).content) for name in names}

    assert sum(sizes.values()) < BUDGET_BYTES, sizes


def test_third_party_files_are_unchanged_and_carry_a_licence():
    readme = (routes.FOLDER / "README.md").read_text()
    for digest, name in re.findall(r"^([0-9a-f]{64})  (\S+)$", readme, re.MULTILINE):
        assert hashlib.sha256((routes.FOLDER / name).read_bytes()).hexdigest() == digest
    assert {p.name for p in FILES if p.name.startswith("uPlot")} == {
        "uPlot.LICENSE.txt",
        "uPlot.iife.min.js",
        "uPlot.min.css",
    }
    assert "MIT License" in (routes.FOLDER / "uPlot.LICENSE.txt").read_text()


def test_nothing_is_inline_and_the_policy_lets_nothing_be(stage):
    page = fetch(stage, "/")

    assert not re.search(rb"<style|<script>| style=| on\w+=|javascript:", page.content)
    policy = page.getheader("Content-Security-Policy")
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "require-trusted-types-for 'script'" in policy
    assert page.getheader("X-Content-Type-Options") == "nosniff"
    assert page.getheader("Referrer-Policy") == "no-referrer"


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.name)
def test_our_scripts_make_no_markup_and_can_be_read(path):
    text = path.read_text()

    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|new Function", text)
    assert len(text.splitlines()) <= 400
    assert "https://" not in text


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.name)
def test_every_text_of_the_page_is_found_by_translators_tools(path):
    said = re.findall(r'\b(?:t|template)\("((?:[^"\\]|\\.)*)"', path.read_text())

    assert [text for text in said if text not in templates()] == []


def test_all_that_boards_show_is_explained():
    history = (routes.FOLDER / "history.js").read_text()
    metrics = re.findall(r'"(\w+)"', history[history.index("BOARDS = {") : history.index("};")])

    assert len(metrics) > 20
    assert [name for name in metrics if name not in TEMPLATES["label"]["help"]] == []


def test_a_browsers_cached_file_is_confirmed_in_a_few_bytes(stage):
    first = fetch(stage, "/static/main.js")
    again = fetch(stage, "/static/main.js", **{"If-None-Match": first.getheader("ETag")})

    assert (again.status, again.content) == (304, b"")
    assert first.getheader("Cache-Control") == "no-cache"


def test_a_client_without_gzip_gets_the_same(stage):
    plain = fetch(stage, "/static/page.css")
    zipped = fetch(stage, "/static/page.css", **{"Accept-Encoding": "gzip"})

    assert gzip.decompress(zipped.content) == plain.content == (routes.FOLDER / "page.css").read_bytes()


@pytest.mark.parametrize("name", ["openapi.json", "README.md", "..%2fapi.py", "%2e%2e", "nothing.js"])
def test_no_other_file_is_given_away(stage, name):
    assert fetch(stage, f"/static/{name}").status == 404
