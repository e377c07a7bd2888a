"""Packages not installed by default: the message names the command that installs them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from wslgpud import optional_packages

ROOT = Path(__file__).parent.parent


def test_each_extra_has_a_remedy_and_is_offered_on_install() -> None:
    _, _, rest = (ROOT / "pyproject.toml").read_text().partition("[project.optional-dependencies]\n")
    declared = dict(re.findall(r'^(\w+) = \["([\w\[\]-]+)', rest.partition("\n[")[0], re.MULTILINE))

    assert {name: package.strip("'") for name, package in optional_packages.PACKAGES.items()} == declared
    offered = subprocess.run([ROOT / "deploy/install", "--help"], capture_output=True, text=True, check=True).stdout
    assert " ".join(sorted(declared)) in offered


def test_the_remedy_adds_to_where_this_program_runs(monkeypatch, tmp_path: Path) -> None:
    pinned = f"--require-hashes -r {ROOT}/deploy/extras/parquet.txt"
    assert optional_packages.remedy("parquet") == f"{sys.executable} -m pip install {pinned}"
    monkeypatch.setattr(optional_packages, "_PINNED", tmp_path)
    assert optional_packages.remedy("parquet") == f"{sys.executable} -m pip install pyarrow"

    monkeypatch.setattr(optional_packages, "find_spec", lambda _: None)  # 'uv tool install' brings no pip
    assert optional_packages.remedy("parquet") == f"uv pip install --python {sys.executable} pyarrow"

    (tmp_path / "wslgpud.releases").mkdir()
    (tmp_path / "wslgpud").symlink_to(tmp_path / "wslgpud.releases")
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "wslgpud"))

    assert optional_packages.remedy("parquet") == "wslgpud service install --user --extra parquet"

    monkeypatch.setattr(sys, "prefix", "/usr/lib/wslgpud")  # the Debian package: dpkg's files are left alone
    assert optional_packages.remedy("stress") == "sudo wslgpud service install --extra stress"
    assert optional_packages.remedy("parquet").startswith("sudo apt remove wslgpud && ")
