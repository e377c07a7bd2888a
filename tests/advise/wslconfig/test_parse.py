r"""We read .wslconfig as WSL does what people write there.

The warnings are those that WSL's own tests expect: ``Warnings`` in test/windows/UnitTests.cpp of
https://github.com/microsoft/WSL at 3e27a6a.
"""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wslgpud.probes.wsl_config import WSLCONFIG, Parsed, parse, size


def warnings_of(found: Parsed) -> list[str]:
    return [entry.warning for entry in found.entries if entry.warning]


MODES = "Bridged, Consomme, Mirrored, Nat, None, VirtioProxy"


@pytest.mark.parametrize(
    ("text", "warnings"),
    [
        ("a=b", ["Unknown key 'wsl2.a' in F:2"]),
        ("[=b", ["Invalid section name in F:2"]),
        ("dhcpTimeout=NotANumber", ["Invalid integer value 'NotANumber' for key 'wsl2.dhcpTimeout' in F:2"]),
        ("ipv6=NotABoolean", ["Invalid boolean value 'NotABoolean' for key 'wsl2.ipv6' in F:2"]),
        ("[sectionNotComplete", ["Expected ']' in F:2"]),
        ("NoEqual", ["Expected '=' in F:2"]),
        ("memory 8GB", ["Expected '=' in F:2"]),
        ("kernel C:\\Users", ["Expected '=' in F:2"]),
        ("networkingMode=a\\m", ["Invalid escaped character: 'm' in F:2"]),
        (
            "networkingMode=InvalidMode",
            [f"Invalid value 'InvalidMode' for config key 'wsl2.networkingMode' in F:2 (Valid values: {MODES})"],
        ),
        ("\nswap=/", ["Invalid memory string '/' for .wslconfig entry 'wsl2.swap' in F:3"]),
        ("\nswap=0GB", []),
        ("\nswap=0foo", ["Invalid memory string '0foo' for .wslconfig entry 'wsl2.swap' in F:3"]),
        ("processors=", ["Invalid integer value '' for key 'wsl2.processors' in F:2"]),
        ("memory=", ["Invalid memory string '' for .wslconfig entry 'wsl2.memory' in F:2"]),
        ("debugConsole=", ["Invalid boolean value '' for key 'wsl2.debugConsole' in F:2"]),
        ("ipv6=true\nipv6=false", ["Duplicated config key 'wsl2.ipv6' in F:3 (Conflicting key: 'wsl2.ipv6' in F:2)"]),
        (
            "networkingMode=NAT\n[experimental]\nnetworkingMode=Mirrored",
            [
                "Duplicated config key 'experimental.networkingMode' in F:4"
                " (Conflicting key: 'wsl2.networkingMode' in F:2)"
            ],
        ),
        ("[experimental]\ndnsTunneling=true\nbestEffortDnsParsing=true", []),
        (
            "[experimental]\ndnsTunneling=true\ndnsTunnelingIpAddress=1.2.3",
            ["Invalid IP value '1.2.3' for key 'experimental.dnsTunnelingIpAddress' in F:4"],
        ),
        (
            "[experimental]\ndnsTunnelingIpAddress=10.0.0.256",
            ["Invalid IP value '10.0.0.256' for key 'experimental.dnsTunnelingIpAddress' in F:3"],
        ),
        (
            "[experimental]\nignoredPorts=NotANumber",
            ["Invalid integer value 'NotANumber' for key 'experimental.ignoredPorts' in F:3"],
        ),
        (
            "[experimental]\nignoredPorts=65536",
            ["Invalid integer value '65536' for key 'experimental.ignoredPorts' in F:3"],
        ),
        ("[experimental]\nignoredPorts=1,65535, 00080,+22", []),
        (
            "[experimental]\nignoredPorts=0,100000,7",
            ["Invalid integer value '0,100000,7' for key 'experimental.ignoredPorts' in F:3"],
        ),
        ("[experimental]\nswiotlb=64M", []),
        ("[experimental]\nswiotlb=4096K", []),
        (
            "[experimental]\nswiotlb=garbage",
            ["Invalid memory string 'garbage' for .wslconfig entry 'experimental.swiotlb' in F:3"],
        ),
    ],
)
def test_it_warns_as_wsl_does(text, warnings):
    assert warnings_of(parse(f"[wsl2]\n{text}", "F")) == warnings


def test_line_ends_of_windows_count_as_one():
    found = parse("\r\n\r\n[foo]\r\na=b\r\n", "F")

    assert warnings_of(found) == ["Unknown key 'foo.a' in F:4"]


@pytest.mark.parametrize(
    ("text", "bytes_"),
    [
        ("8GB", 8 << 30),
        ("8G", 8 << 30),
        ("512MB", 512 << 20),
        ("1TB", 1 << 40),
        ("3K", 3 << 10),
        ("3KB", 3 << 10),
        ("5M", 5 << 20),
        ("-0", None),
        ("4096", 4096),
        ("+8GB", 8 << 30),
        ("007GB", 7 << 30),
        ("7B", 7),
        ("0", 0),
        ("0GB", 0),
        ("8gb", None),
        ("8 GB", None),
        ("8GiB", None),
        ("2.5GB", None),
        ("none", None),
        ("", None),
        ("00", None),
        ("99999999999999999999999", None),
    ],
)
def test_sizes_are_whole_numbers_with_upper_case_units(text, bytes_):
    assert size(text) == bytes_


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("8", 8),
        ("-1", -1),
        ("022", 0o22),
        ("0x10", 16),
        ("08", None),
        ("8 threads", None),
        ("", None),
        ("2147483647", 2147483647),
        ("9999999999", None),
    ],
)
def test_whole_numbers_are_read_as_c_reads_them(text, number):
    assert parse(f"[wsl2]\nprocessors={text}\n").get("wsl2.processors") == number


def test_the_first_line_with_a_line_end_of_windows_is_known():
    assert [parse(text).windows_line for text in ("a=b\n", "a=b\r\n", "a=b\n\n[c]\r\n\r\n")] == [0, 1, 3]


def test_a_full_width_space_ends_a_value_as_in_wsl():
    assert parse("[wsl2]\nkernel=C:/a\u3000b\nmemory=8GB\n").get("wsl2.kernel") == "C:/a"


def test_only_true_false_1_and_0_are_booleans():
    def read(text: str) -> object:
        return parse(f"[wsl2]\nipv6={text}\n").get("wsl2.ipv6")

    assert [read(text) for text in ("TRUE", "1", "False", "0")] == [True, True, False, False]
    assert [read(text) for text in ("yes", "on", "no", "off", "")] == [None] * 5


def test_sections_and_keys_may_be_written_in_any_case():
    assert parse("[WSL2]\nMEMORY=8GB\n").get("wsl2.memory") == 8 << 30


def test_only_a_hash_begins_a_comment_and_not_inside_quotes():
    found = parse('[wsl2] # main\nmemory=8GB # of 64\nkernelCommandLine="a#b " # rest\nswap=1GB ; none\n; no\n', "F")

    assert found.get("wsl2.memory") == 8 << 30
    assert found.get("wsl2.kernelCommandLine") == "a#b "
    assert warnings_of(found) == [
        "Invalid memory string '1GB ; none' for .wslconfig entry 'wsl2.swap' in F:4",
        "Invalid key name in F:5",
    ]


def test_backslashes_must_be_doubled_or_may_become_a_tab():
    found = parse("[wsl2]\nswapFile=C:\\\\swap\\\\a.vhdx\nkernel=C:\\temp\ncrashDumpFolder=C:\\Users\\me\n", "F")

    assert found.get("wsl2.swapFile") == "C:\\swap\\a.vhdx"
    assert found.get("wsl2.kernel") == "C:\temp"
    assert found.get("wsl2.crashDumpFolder") is None
    assert warnings_of(found) == ["Invalid escaped character: 'U' in F:4"]


def test_a_line_that_ends_in_a_backslash_goes_on():
    found = parse("[wsl2]\nkernelCommandLine=a=1 \\\n  b=2\nmemory=8GB\n")

    assert found.get("wsl2.kernelCommandLine") == "a=1   b=2"
    assert found.get("wsl2.memory") == 8 << 30


def test_the_first_of_two_equal_keys_counts_even_if_invalid():
    found = parse("[wsl2]\nmemory=lots\nmemory=8GB\n")

    assert found.get("wsl2.memory") is None
    assert [e.state for e in found.entries] == ["refused", "duplicate"]


def test_a_broken_header_hides_its_keys_from_wsl():
    found = parse("[wsl2 ]\nmemory=8GB\n[experimental]\nsparseVhd=true\n[general ]\ninstanceIdleTimeout=-1\n")

    written = [e.written for e in found.entries if e.state != "unreadable"]
    assert written == ["memory", "experimental.sparseVhd", "instanceIdleTimeout"]
    assert found.get("general.instanceIdleTimeout") is None


def test_a_header_without_a_name_leaves_keys_where_they_were():
    assert parse("[wsl2]\n[ experimental ]\nmemory=8GB\n").get("wsl2.memory") == 8 << 30


def test_a_malformed_line_ends_before_its_line_end():
    (bad,) = parse('swapFile="C:\r\n').entries

    assert (bad.value, bad.end) == ('swapFile="C:', 12)


def test_moved_keys_are_accepted_in_their_old_section_too():
    assert parse("[experimental]\nnetworkingMode=mirrored\n").get("wsl2.networkingMode") == "Mirrored"


def test_every_key_is_declared_once_with_a_source():
    paths = [key.path.lower() for key in WSLCONFIG.keys]
    moved = [f"{key.old_section}.{key.name}".lower() for key in WSLCONFIG.keys if key.old_section]

    assert len(WSLCONFIG.by_path) == len(paths) + len(moved)
    assert set(WSLCONFIG.by_path) == {*paths, *moved}
    assert all(key.link.startswith("https://") and key.meaning.endswith(".") for key in WSLCONFIG.keys)


FRAGMENTS = st.sampled_from(
    [
        "[wsl2]",
        "[experimental]",
        "[general",
        "[",
        "]",
        "memory",
        "swap",
        "=",
        "8GB",
        '"',
        "#",
        "\\",
        "\\\\",
        "\\n",
        "\n",
        "\r\n",
        "\r",
        " ",
        "\t",
        ";",
        "true",
        "swapFile",
        "autoMemoryReclaim=gradual",
        "\ufeff",
        "é",
        "💥",
        "\0",
    ]
)


@given(st.lists(FRAGMENTS | st.text(alphabet=string.printable, max_size=5), max_size=40).map("".join))
def test_no_file_however_odd_breaks_the_parser(text):
    found = parse(text)

    assert all(0 <= e.span[0] <= e.span[1] <= e.end <= len(text) for e in found.entries)
    assert all(1 <= e.line <= text.count("\n") + text.count("\r") + 1 for e in found.entries)
    assert sum(e.state == "unknown" for e in found.entries) == sum("Unknown key" in w for w in warnings_of(found))


@pytest.mark.parametrize("key", ["wsl2.memory", "wsl2.processors", "experimental.ignoredPorts"])
def test_a_number_of_thousands_of_digits_is_only_a_large_one(key):
    section, name = key.split(".")
    found = parse(f"[{section}]\n{name}={'9' * 5000}{'GB' * (name == 'memory')}")

    assert found.first(key) is not None
    assert len(warnings_of(found)) == 1
