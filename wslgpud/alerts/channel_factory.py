"""Creates channels from the configuration."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from wslgpud.alerts.channels import Channel
from wslgpud.alerts.channels.alertmanager import AlertmanagerChannel
from wslgpud.alerts.channels.apprise import AppriseChannel, understood, urls_from
from wslgpud.alerts.channels.notifications import DesktopChannel, ToastChannel
from wslgpud.alerts.channels.programs import CommandChannel
from wslgpud.alerts.dispatcher import quiet_hours
from wslgpud.config import Alerts, ConfigError
from wslgpud.host import Host
from wslgpud.model import Level
from wslgpud.words import say


def channels(settings: Alerts, host: Host, environ: Mapping[str, str]) -> list[Channel]:
    """Return the configured and the automatic channels; ConfigError: one cannot be used."""
    found: list[Channel] = []
    toast, desktop = ToastChannel(host, environ), DesktopChannel(environ)
    if settings.windows_toast == "on" or (settings.windows_toast == "auto" and host.live and toast.available()):
        found.append(toast)
    # Under WSL no desktop shows notifications; Windows does.
    local = host.live and not found and desktop.available()
    if settings.desktop == "on" or (settings.desktop == "auto" and local):
        found.append(desktop)
    found += configured(settings)
    names = [channel.name for channel in found]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ConfigError("alerts: {names} is configured twice", names=tuple(sorted(twice)))
    if unknown := levels(settings).keys() - {*names, *optional_channels(settings)}:
        told = {"names": tuple(sorted(unknown)), "known": tuple(names) or say("none")}
        raise ConfigError("alerts.channel_levels: no channel {names}; there are: {known}", **told)
    return found


def configured(settings: Alerts) -> list[Channel]:
    """Return the explicitly configured channels; raises like ``channels``."""
    levels(settings)
    quiet_hours(settings.quiet_hours)  # validate even without a channel for people
    urls = urls_from(settings.urls, settings.urls_file)
    understood(urls)
    found: list[Channel] = [AppriseChannel(url) for url in urls]
    found += [AlertmanagerChannel(url) for url in settings.alertmanager_urls]
    if settings.command:
        found.append(CommandChannel(settings.command, settings.command_timeout_seconds))
    return found


def optional_channels(settings: Alerts) -> set[str]:
    """Return the channels that are used if available; Windows' drive is not available at every boot.

    https://github.com/microsoft/WSL/issues/4226
    """
    automatic = {ToastChannel.name: settings.windows_toast, DesktopChannel.name: settings.desktop}
    return {name for name, use in automatic.items() if use == "auto"}


def levels(settings: Alerts) -> defaultdict[str, Level]:
    """Return the lowest level of each channel; ConfigError where one is not given as ``name=level``."""
    found = defaultdict(lambda: Level[settings.minimum_level.upper()])
    for entry in settings.channel_levels:
        name, _, level = entry.partition("=")
        if level.upper() not in Level.__members__ or not name:
            raise ConfigError(
                "alerts.channel_levels must hold entries like windows_toast=critical, not {entry}", entry=repr(entry)
            )
        found[name] = Level[level.upper()]
    return found
