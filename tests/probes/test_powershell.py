"""The scripts sent to Windows are valid PowerShell and query documented classes only (no Windows here to run them)."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import tree_sitter_powershell
from tree_sitter import Language, Node, Parser

from wslgpud.advise.wslconfig import files
from wslgpud.alerts.channels import programs
from wslgpud.probes import interop

REFERENCE = json.loads(Path(__file__).with_name("windows_reference.json").read_text())
SIZE = "$c = Get-CimInstance Win32_ComputerSystem; '{0} {1}' -f $c.TotalPhysicalMemory, $c.NumberOfLogicalProcessors"
SCRIPTS = {
    "probe": interop.RESIDENT_PROBE,
    "toast": programs.SCRIPT,
    "keep-alive": interop.KEEP_ALIVE,
    "about": interop.ABOUT,
    "size": SIZE,
}
#: as they are run: in the frame that words what fails
FRAMED = {name: interop.framed(script) for name, script in SCRIPTS.items()}
#: how a type of WinRT is named with its assembly, which the grammar does not know
_WINRT = re.compile(r",[\w.]+,ContentType=WindowsRuntime\]")
_COMMAND = re.compile(r"[A-Z][A-Za-z]+-[A-Z]\w+")


def tree(script: str) -> Node:
    parser = Parser(Language(tree_sitter_powershell.language()))
    return parser.parse(_WINRT.sub("]", script).encode()).root_node


def walked(node: Node) -> Iterator[Node]:
    yield node
    for child in node.children:
        yield from walked(child)


def texts(script: str, kind: str) -> set[str]:
    return {node.text.decode() for node in walked(tree(script)) if node.type == kind and node.text is not None}


def faults(script: str) -> list[str]:
    return [str(node) for node in walked(tree(script)) if node.type == "ERROR" or node.is_missing]


def test_the_tested_windows_size_script_is_the_one_in_use() -> None:
    assert SIZE in inspect.getsource(files.windows_size)


@pytest.mark.parametrize("name", FRAMED)
def test_each_script_is_powershell(name: str) -> None:
    assert faults(FRAMED[name]) == []


@pytest.mark.parametrize("name", ["probe", "toast", "keep-alive", "about"])
@pytest.mark.parametrize("lost", [")", "'"])
def test_a_character_that_is_lost_is_seen(name: str, lost: str) -> None:
    before, found, after = FRAMED[name].rpartition(lost)

    assert not found or faults(before + after)


@pytest.mark.parametrize("name", FRAMED)
def test_each_cmdlet_and_parameter_is_documented(name: str) -> None:
    commands = {command for command in texts(FRAMED[name], "command_name") if _COMMAND.fullmatch(command)}
    assert commands <= REFERENCE["cmdlets"].keys()

    # With the operators, which the grammar has apart.
    known = {p for command in commands for p in REFERENCE["cmdlets"][command]["parameters"]}
    known |= set(REFERENCE["common_parameters"]["parameters"])
    assert {p.strip("-:") for p in texts(FRAMED[name], "command_parameter")} <= known


@pytest.mark.parametrize("name", FRAMED)
def test_each_type_and_what_is_asked_of_it_is_documented(name: str) -> None:
    types = {text.strip("[]") for text in texts(FRAMED[name], "type_literal")}
    assert types <= REFERENCE["types"].keys()

    asked = re.findall(r"\[([\w.]+)\]::(\w+)", _WINRT.sub("]", FRAMED[name]))
    assert [(kind, member) for kind, member in asked if member not in REFERENCE["types"][kind]["members"]] == []


def test_each_class_and_property_of_wmi_is_documented() -> None:
    script = re.sub(r"' \+\s+[\"']", "", FRAMED["probe"]).replace("${counters}", "Win32_PerfFormattedData")
    asked = dict(re.findall(r"FROM (\w+)()", script))
    queries = re.findall(r"SELECT ([\w, ]+) FROM (\w+)", script)

    assert len(queries) == len(asked) == 4
    for properties, name in (*queries, ("TotalPhysicalMemory, NumberOfLogicalProcessors", "Win32_ComputerSystem")):
        assert set(properties.split(", ")) == set(REFERENCE["classes"][name]["properties"])


def test_each_link_leads_to_microsofts_reference() -> None:
    kinds = (REFERENCE["cmdlets"], REFERENCE["classes"], REFERENCE["types"])
    links = [entry["link"] for kind in kinds for entry in kind.values()]

    assert [
        one for one in links if not one.startswith(("https://learn.microsoft.com/", "https://devblogs.microsoft.com/"))
    ] == []
