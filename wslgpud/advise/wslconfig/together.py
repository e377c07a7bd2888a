"""Settings of .wslconfig that have an effect, or do harm, only beside another one: what the whole file means.

``Config::Initialize`` of src/windows/common/WslCoreConfig.cpp switches them off in silence; of localhostForwarding
``WslCoreVm::ValidateNetworkingMode`` (src/windows/service/exe/WslCoreVm.cpp) warns at each start:
https://github.com/microsoft/WSL.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from wslgpud.probes.wsl_config import Entry, Parsed, Value
from wslgpud.probes.wsl_keys import WSLCONFIG
from wslgpud.words import MessageLike, say

_MODE, _TUNNEL, _PROXY, _STAYS = "networkingMode", "dnsTunneling", "autoProxy", "general.instanceIdleTimeout"
_MIRRORED = "Mirrored"
#: WSL's own words, see Resources.resw
_FORWARDING = "The wsl2.localhostForwarding setting has no effect when using mirrored networking mode"


class Bound(NamedTuple):
    """A setting has an effect only while ``other`` (below [wsl2]) has the value ``needs``, by default ``default``."""

    other: str
    needs: str
    default: str
    #: nobody should wish for bridged mode, which releases drop and take back (2.5.4, 2.5.6): microsoft/WSL#12743
    advised: bool = True


_BRIDGED = Bound(_MODE, "Bridged", "Nat", advised=False)
_BOUND = {
    "experimental.hostAddressLoopback": Bound(_MODE, _MIRRORED, "Nat"),
    "experimental.ignoredPorts": Bound(_MODE, _MIRRORED, "Nat"),
    "wsl2.vmSwitch": _BRIDGED,
    "wsl2.macAddress": _BRIDGED,
    "wsl2.dhcp": _BRIDGED,
    "wsl2.dhcpTimeout": _BRIDGED,
    "wsl2.ipv6": _BRIDGED,
    "experimental.bestEffortDnsParsing": Bound(_TUNNEL, "true", "true"),
    "experimental.dnsTunnelingIpAddress": Bound(_TUNNEL, "true", "true"),
    "experimental.initialAutoProxyTimeout": Bound(_PROXY, "true", "true"),
}


def findings(parsed: Parsed) -> Iterator[tuple[Entry, str, MessageLike, MessageLike]]:
    """Yield each line that another one deprives of its effect, WSL's own warning, the reason and the fix."""
    if parsed.file is not WSLCONFIG:
        return
    for entry in parsed.entries:
        # A wish that is written as its default loses nothing, and of a line that WSL warns of everything is said.
        if entry.key is None or entry.state != "used" or entry.warnings or entry.result is False:
            continue
        if bound := _BOUND.get(entry.key.path):
            now = _written(parsed.get(f"wsl2.{bound.other}"), bound.default)
            if now != bound.needs:
                why = say("it has no effect with {setting}", setting=f"{bound.other}={now.lower()}")
                yield entry, "", why, _wish(bound) if bound.advised else say("delete the line")
    yield from _of_mirrored(parsed)
    yield from _of_stopping(parsed)
    modules = parsed.first("wsl2.kernelModules")
    if modules and modules.value and not parsed.get("wsl2.kernel"):
        why = say("WSL does not start with modules of your own and its own kernel")
        yield modules, "", why, say("name the kernel that they were built with, or delete the line")


def _wish(bound: Bound) -> MessageLike:
    setting = f"{bound.other}={bound.needs.lower()}"
    return say("delete the line, or write {setting} below [{section}]", setting=setting, section="wsl2")


def _of_mirrored(parsed: Parsed) -> Iterator[tuple[Entry, str, MessageLike, MessageLike]]:
    """Yield what mirrored networking does by itself, whatever the line says."""
    if parsed.get(f"wsl2.{_MODE}") != _MIRRORED:
        return
    forwarding, firewall = parsed.first("wsl2.localhostForwarding"), parsed.first("wsl2.firewall")
    why = say("it has no effect with {setting}", setting="networkingMode=mirrored")
    if forwarding:
        yield forwarding, _FORWARDING, why, say("delete the line: localhost works there in both directions")
    if firewall and firewall.result is False:
        yield firewall, "", why, say("delete the line: Windows' firewall always applies there")


def _of_stopping(parsed: Parsed) -> Iterator[tuple[Entry, str, MessageLike, MessageLike]]:
    """Yield a wish to keep the virtual machine that keeps no distro."""
    entry, stays = parsed.first("wsl2.vmIdleTimeout"), parsed.get(_STAYS)
    kept = isinstance(stays, int) and stays < 0
    if entry and isinstance(entry.result, int) and entry.result < 0 and not kept:
        why = say("alone it keeps no service running: the distro stops 15 s after its last terminal closes")
        yield entry, "", why, say("write instanceIdleTimeout=-1 below [general] instead")


def _written(value: Value | None, default: str) -> str:
    """Return a setting's value as one writes it."""
    return default if value is None else str(value).lower() if isinstance(value, bool) else str(value)
