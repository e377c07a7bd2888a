"""What others meet who join: workflows and forms that the service understands, and a release that is one command."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import wslgpud

ROOT = Path(__file__).parents[2]
GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
FORMS = sorted(path for path in (GITHUB / "ISSUE_TEMPLATE").glob("*.yml") if path.stem != "config")
SCHEMAS = {
    **dict.fromkeys(WORKFLOWS, "vendor.github-workflows"),
    **dict.fromkeys(FORMS, "vendor.github-issue-forms"),
    GITHUB / "ISSUE_TEMPLATE" / "config.yml": "vendor.github-issue-config",
}


@pytest.mark.parametrize("path", SCHEMAS, ids=lambda path: path.name)
def test_each_file_is_what_its_published_schema_asks_for(path: Path) -> None:
    pytest.importorskip("check_jsonschema", reason="its regular expressions need Python 3.11")
    checker = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", SCHEMAS[path], str(path)]
    done = subprocess.run(checker, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout


def test_every_python_that_is_claimed_is_run() -> None:
    claimed = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', (ROOT / "pyproject.toml").read_text())
    jobs = yaml.safe_load((GITHUB / "workflows" / "tests.yml").read_text())["jobs"]

    assert jobs["light"]["strategy"]["matrix"]["python"] == claimed


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_no_job_may_do_more_than_it_must_and_each_ends(path: Path) -> None:
    document = yaml.safe_load(path.read_text())
    jobs = [job for job in document["jobs"].values() if "uses" not in job]

    assert document["permissions"] == {"contents": "read"}
    assert all(job["timeout-minutes"] <= 90 for job in jobs)
    assert "secrets." not in path.read_text()


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_the_code_of_others_is_pinned_by_its_commit(path: Path) -> None:
    """A tag can be moved to another commit, by who takes over an action; the comment says which version it is."""
    used = re.findall(r"uses: (?!\./)(.*)", path.read_text())

    assert used
    assert [one for one in used if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", one)] == []


def test_report_forms_ask_for_output_of_existing_commands() -> None:
    text = " ".join(path.read_text() for path in FORMS)

    assert {"doctor --bundle", "record"} <= {
        found.strip() for found in re.findall(r"`wslgpud (\w+(?: --bundle)?)", text)
    }


def test_the_version_stands_in_one_place() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    ours = [
        name for name in listed if name.startswith(("wslgpud/", "deploy/")) and name.endswith((".py", ".sh", ".toml"))
    ]
    told = [name for name in [*ours, "pyproject.toml"] if f'"{wslgpud.__version__}"' in (ROOT / name).read_text()]

    assert told == ["wslgpud/__init__.py"]


def released(folder: Path, version: str) -> subprocess.CompletedProcess[str]:
    """Try a release in a clone whose tests and generators do nothing but what the test says."""
    return subprocess.run(["./deploy/release", version], cwd=folder, capture_output=True, text=True, check=False)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """What a release touches, under git; its generators and tests are the test's."""
    for name in ("deploy/release", "CHANGELOG.md", "wslgpud/__init__.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    (tmp_path / "deploy" / "release").chmod(0o755)
    (tmp_path / "tests").mkdir()
    for name in ("renew", "run"):
        (tmp_path / "tests" / name).write_text("#!/bin/sh\n")
        (tmp_path / "tests" / name).chmod(0o755)
    who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    for command in (["init", "-q", "-b", "main"], ["add", "."], [*who, "commit", "-qm", "all"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    for name, value in (("user.name", "a"), ("user.email", "a@example.org")):
        subprocess.run(["git", "config", name, value], cwd=tmp_path, check=True)
    return tmp_path


def test_a_release_is_one_command(clone: Path) -> None:
    done = released(clone, "7.8.9")
    tags = subprocess.run(["git", "tag"], cwd=clone, capture_output=True, text=True, check=True).stdout

    assert done.returncode == 0, done.stderr
    assert tags == "v7.8.9\n"
    assert '__version__ = "7.8.9"' in (clone / "wslgpud" / "__init__.py").read_text()
    assert re.search(r"## \[Unreleased\]\n\n## \[7\.8\.9\] - \d{4}-", (clone / "CHANGELOG.md").read_text())


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda clone: (clone / "CHANGELOG.md").write_text("changed"), "commit or stash"),
        (lambda clone: _commit(clone, "CHANGELOG.md", "## [Unreleased]\n\n## [0.1.0]\n- a\n"), "says nothing"),
        (lambda clone: _commit(clone, "tests/renew", "#!/bin/sh\necho >>CHANGELOG.md\n"), "were not renewed"),
        (lambda clone: _commit(clone, "tests/run", "#!/bin/sh\nexit 1\n"), ""),
    ],
    ids=["changes", "nothing to say", "not renewed", "tests fail"],
)
def test_what_is_not_ready_is_not_released(clone: Path, spoil, told: str) -> None:
    spoil(clone)
    done = released(clone, "7.8.9")
    tags = subprocess.run(["git", "tag"], cwd=clone, capture_output=True, text=True, check=True).stdout

    assert done.returncode != 0
    assert told in done.stderr
    assert tags == ""


def _commit(clone: Path, name: str, text: str) -> None:
    (clone / name).write_text(text)
    (clone / name).chmod(0o755)
    subprocess.run(["git", "commit", "-qam", name], cwd=clone, check=True)
