"""Configuration: every key declared once, with its default, its bounds and its help.

Layers, later wins: the defaults here, one TOML file, the environment (``WSLGPUD_SECTION__KEY``).
An unknown key is an error that names the nearest known one: a typo must not silently disable an alert.
"""

from __future__ import annotations

import dataclasses
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_type_hints

from wslgpud.config.keys import ENVIRONMENT_PREFIX, ConfigError, ConfigKey, allowed, checked, key
from wslgpud.security import safe_files
from wslgpud.toml import tomllib
from wslgpud.words import Message, cause, say
from wslgpud.words.units import nearest

__all__ = ("ConfigError", "ConfigKey", "allowed")  # re-exported

SYSTEM_FILE = Path("/etc/wslgpud/wslgpud.toml")
SYSTEM_STATE = safe_files.SYSTEM_STATE


@dataclass(frozen=True)
class Sampling:
    """How often the machine is sampled."""

    interval_seconds: float = key(1.0, "time between two samples", low=0.1, high=60)
    fastest_seconds: float = key(
        0.1, "shortest interval, used automatically when little memory is left", low=0.1, high=60
    )
    processes_seconds: float = key(5.0, "time between two scans of the process list", low=1, high=600)
    processes_max: int = key(12, "number of processes kept per sample", low=1, high=100)
    gpu: bool = key(True, "read NVIDIA GPUs through NVML")
    gpu_timeout_seconds: float = key(5.0, "time limit for NVML before its process is replaced", low=0.5, high=120)
    nvml_library: str = key("", "path of libnvidia-ml.so.1; empty means the usual places, WSL's first")
    model_servers: tuple[str, ...] = key(
        (),
        "pages of model servers to read: http://127.0.0.1:8000/metrics (vLLM, llama.cpp), "
        "http://127.0.0.1:11434/api/ps (Ollama)",
        shows="address",
    )


@dataclass(frozen=True)
class Windows:
    """Metrics of Windows, under WSL2."""

    probe: str = key(
        "auto", "a resident PowerShell process in Windows that reports its memory and GPUs", choices=("auto", "off")
    )
    exporter_url: str = key(
        "",
        "windows_exporter to query instead (collectors memory, gpu, process), like http://MYPC.local:9182/metrics",
        shows="address",
    )
    every_seconds: float = key(10.0, "time between two queries to Windows", low=1, high=600)
    return_cache: bool = key(
        False,
        "give page cache back while Windows is short of memory; files dropped so are read from the disk again, as in a "
        "training's next epoch; needs 'wslgpud service install --allow return-cache'",
    )


@dataclass(frozen=True)
class StoreSettings:
    """Where the history is stored and how much of it is kept."""

    path: str = key(
        "", "SQLite file, or postgresql+psycopg://...; empty: wslgpud.db in the state folder", shows="address"
    )
    commit_seconds: float = key(10.0, "time between two writes while memory is calm", low=1, high=300)
    raw_days: float = key(30.0, "days for which every sample is kept", low=0.01, high=3650)
    minute_days: float = key(366.0, "days for which one-minute summaries are kept", low=1, high=36500)
    hour_days: float = key(3660.0, "days for which one-hour summaries are kept", low=1, high=36500)
    max_bytes: int = key(
        2_000_000_000,
        "size of the SQLite file above which its oldest samples are deleted first (of a server: its "
        "administrator's task)",
        low=20_000_000,
    )


@dataclass(frozen=True)
class Server:
    """The page, the metrics and the API."""

    address: str = key("127.0.0.1", "address to listen on")
    port: int = key(9655, "port to listen on; 0 picks a free one", low=0, high=65535)
    web_config_file: str = key("", "TLS and passwords, in the format of Prometheus' exporter-toolkit (web.config.file)")
    insecure: bool = key(False, "listen on other addresses than loopback without TLS and passwords")
    allowed_hosts: tuple[str, ...] = key((), "host names under which the page answers, besides this machine's")


@dataclass(frozen=True)
class Otlp:
    """Metrics pushed to an OpenTelemetry collector, beside the scrape."""

    endpoint: str = key(
        "",
        "collector, like http://127.0.0.1:4318/v1/metrics; empty: none; needs 'wslgpud service install --extra otlp'",
        shows="address",
    )
    headers: tuple[str, ...] = key((), "headers to send along, like authorization=Bearer 123", shows="set")
    interval_seconds: float = key(15.0, "time between two pushes", low=0.1, high=3600)


@dataclass(frozen=True)
class Alerts:
    """Channels for warnings."""

    minimum_level: str = key(
        "warning", "lowest level that is sent", choices=("info", "warning", "critical", "emergency")
    )
    channel_levels: tuple[str, ...] = key(
        (), "lowest level of single channels, like windows_toast=critical (names: wslgpud alerts test)"
    )
    language: str = key(
        "",
        "language of alerts and commands (logs are English); empty means that of the locale",
        choices=("", "en", "zh"),
    )
    resolved: bool = key(True, "send a message when an incident is over")
    repeat: bool = key(
        True,
        "repeat a warning when the time left has halved since the last message, ten minutes after it at the earliest",
    )
    quiet_hours: str = key("", "local time without messages to people, like 22:00-07:00")
    quiet_level: str = key(
        "emergency", "lowest level that is sent all the same", choices=("warning", "critical", "emergency")
    )
    messages_per_hour: int = key(
        20, "most messages to people per hour on each channel; more are combined", low=1, high=3600
    )
    expire_hours: float = key(24.0, "messages that no channel has taken for this long are dropped", low=0.1, high=720)
    desktop: str = key("auto", "notifications of the Linux desktop", choices=("auto", "on", "off"))
    windows_toast: str = key("auto", "toasts of Windows, under WSL2", choices=("auto", "on", "off"))
    urls: tuple[str, ...] = key(
        (), "Apprise URLs (ntfy, e-mail, Slack, ...); needs 'wslgpud service install --extra apprise'", shows="set"
    )
    urls_file: str = key("", "file with more Apprise URLs, one per line, to keep secrets out of this file")
    alertmanager_urls: tuple[str, ...] = key(
        (), "addresses of Prometheus' Alertmanager, like http://127.0.0.1:9093", shows="address"
    )
    command: tuple[str, ...] = key(
        (), "program to run at each change of level, with the warning as JSON on standard input", shows="program"
    )
    command_timeout_seconds: float = key(30.0, "time limit of that program", low=1, high=600)
    save_signal: str = key(
        "",
        "signal that asks the growing process to save its work; empty: none",
        choices=("", "SIGUSR1", "SIGUSR2", "SIGTERM"),
    )
    save_rules: tuple[str, ...] = key(("memory_exhaustion",), "rules that may send it")
    save_level: str = key("critical", "lowest level at which it is sent", choices=("warning", "critical", "emergency"))
    save_user: str = key("", "whose processes may get it; empty means those of the daemon's own user", shows="person")


@dataclass(frozen=True)
class BrakeSettings:
    """Pausing the job that is about to use up memory."""

    on: bool = key(False, "pause the job that is about to use up memory, instead of losing it or the machine")
    users: tuple[str, ...] = key(
        (), "users whose jobs may be paused; empty means those of the daemon's own user", shows="person"
    )
    resources: tuple[str, ...] = key(("ram", "gpu", "cgroup"), "kinds of memory to guard: ram, gpu, cgroup")
    act_on_likelihood: float = key(
        1.0,
        "least probability at which a process that only presumably fills a GPU is paused; 1: never",
        low=0.5,
        high=1,
    )
    hold_minutes: float = key(60.0, "time to decide about a paused job before after_hold applies", low=0.1, high=10080)
    after_hold: str = key(
        "stay",
        "what to do with a job nobody decided about: stay paused, resume, or stop",
        choices=("stay", "resume", "stop"),
    )


@dataclass(frozen=True)
class Stress:
    """The nightly test of the GPU's memory."""

    schedule: str = key("30 3 * * *", 'when: minute hour day month weekday, as in a crontab; or "off"')
    jitter_minutes: float = key(20.0, "random delay of the start, at most", low=0, high=720)
    retries: int = key(3, "number of retries in the same night when the GPU was busy", low=0, high=20)
    retry_minutes: float = key(30.0, "time between these tries", low=1, high=720)
    python: str = key(
        "", "Python with torch; empty: that of the last training, else the one that wslgpud has installed"
    )
    reserve_bytes: int = key(
        0, "VRAM that stays free; 0 means 64 MiB, under WSL2 512 MiB or a sixteenth of the card", low=0
    )
    settle_seconds: float = key(30.0, "the GPU must have been idle for this long", low=1, high=3600)
    soak_seconds: float = key(
        30.0, "duration of the soak of 'wslgpud stress --full', on part of the memory", low=0, high=3000
    )
    deadline_seconds: float = key(120.0, "longest time for a whole run, not counting soak_seconds", low=10, high=3600)
    max_celsius: float = key(75.0, "no run on a GPU hotter than this", low=20, high=110)
    probe_beyond: bool = key(
        False, "go up to 512 MiB past the limit to find where memory spills into RAM; may page out the desktop"
    )


@dataclass(frozen=True)
class Log:
    """The log."""

    level: str = key("info", "lowest level of log messages", choices=("debug", "info", "warning", "error"))


@dataclass(frozen=True)
class Config:
    """The whole configuration."""

    sampling: Sampling = Sampling()
    windows: Windows = Windows()
    store: StoreSettings = StoreSettings()
    server: Server = Server()
    otlp: Otlp = Otlp()
    alerts: Alerts = Alerts()
    brake: BrakeSettings = BrakeSettings()
    stress: Stress = Stress()
    log: Log = Log()


def sections() -> dict[str, Any]:
    """Return the names of the sections and the classes that declare their keys."""
    return {f.name: type(f.default) for f in dataclasses.fields(Config)}


def declared_keys() -> list[ConfigKey]:
    """Return every declared key, in order."""
    keys = []
    for section, owner in sections().items():
        hints = get_type_hints(owner)
        keys += [ConfigKey(section, f.name, hints[f.name], f.default, **f.metadata) for f in dataclasses.fields(owner)]
    return keys


@dataclass(frozen=True)
class Loaded:
    """A configuration and the origin of each value that is not a default."""

    config: Config
    file: Path | None
    origins: Mapping[str, str]


def user_file(environ: Mapping[str, str]) -> Path:
    """Return the user's own configuration file by the XDG rules."""
    home = Path(environ.get("XDG_CONFIG_HOME") or Path(environ.get("HOME", "/")) / ".config")
    return home / "wslgpud" / "wslgpud.toml"


def find_file(environ: Mapping[str, str]) -> Path | None:
    """Return the configuration file that applies without ``--config``, if there is one.

    The service's file holds secrets and is closed to ordinary users, for whom it does not apply. The service itself,
    recognised by its state folder from systemd, never falls back to defaults: reading reports the error.

    Raises ConfigError: root would have to go by another user's file.
    """
    theirs = "STATE_DIRECTORY" not in environ and not os.access(SYSTEM_FILE, os.R_OK)
    for file in (user_file(environ),) if theirs else (SYSTEM_FILE, user_file(environ)):
        try:
            owner = file.stat().st_uid
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError:
            return file  # in a folder closed to us: reading it reports that instead of using defaults
        if os.geteuid() == 0 != owner:  # it names programs and libraries; sudo may have kept that user's HOME
            raise ConfigError(
                "{file} belongs to user {uid}: use sudo -H, or name it with --config", file=str(file), uid=owner
            )
        return file
    return None


def state_folder(environ: Mapping[str, str]) -> Path:
    """Return the data folder: systemd's choice, root's folder, or the user's own by the XDG rules."""
    if environ.get("STATE_DIRECTORY"):
        return Path(environ["STATE_DIRECTORY"].split(":")[0])
    if os.geteuid() == 0:
        return SYSTEM_STATE
    base = environ.get("XDG_STATE_HOME") or Path(environ.get("HOME", "/")) / ".local" / "state"
    return Path(base) / "wslgpud"


def load(file: Path | None = None, environ: Mapping[str, str] | None = None, *, text: str | None = None) -> Loaded:
    """Read the configuration from ``file`` (by default the usual places) and the environment.

    ``text`` is what the file is about to contain.

    Raises:
        ConfigError: the file cannot be read or parsed, a key is unknown, or a value is invalid.
    """
    environ = os.environ if environ is None else environ
    file = file or find_file(environ)
    known = {k.path: k for k in declared_keys()}
    values: dict[str, dict[str, Any]] = defaultdict(dict)
    origins: dict[str, str] = {}
    for path, value, origin in [*_from_file(file, text), *_from_environment(environ, known.values())]:
        if path not in known:
            raise ConfigError(_unknown(say("{origin}: unknown key {key}", origin=origin, key=path), path, known))
        values[known[path].section][known[path].name] = checked(known[path], value, origin)
        origins[path] = origin
    config = Config(**{section: owner(**values[section]) for section, owner in sections().items()})
    if config.sampling.fastest_seconds > config.sampling.interval_seconds:
        raise ConfigError(say("sampling.fastest_seconds must not exceed sampling.interval_seconds"))
    return Loaded(config, file, origins)


def _from_file(file: Path | None, text: str | None) -> list[tuple[str, Any, str]]:
    if file is None:
        return []
    try:
        document = tomllib.loads(file.read_bytes().decode() if text is None else text)
    except OSError as error:
        raise ConfigError("{file}: {reason}", file=str(file), reason=cause(error)) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError("{file}: not valid TOML: {error}", file=str(file), error=cause(error)) from error
    settings = []
    for section, content in document.items():
        if section not in sections():
            what = say("{file}: unknown section [{section}]", file=str(file), section=section)
            raise ConfigError(_unknown(what, section, sections()))
        if not isinstance(content, dict):
            why = say("{section} is a section; write [{section}] and its keys below", section=section)
            raise ConfigError("{path}: {why}", path=str(file), why=why)
        settings += [(f"{section}.{name}", value, str(file)) for name, value in content.items()]
    return settings


def _from_environment(environ: Mapping[str, str], known: Iterable[ConfigKey]) -> list[tuple[str, Any, str]]:
    meant = {k.environment.replace("__", "_"): k.environment for k in known}
    if wrong := next((name for name in sorted(environ) if name in meant), None):
        raise ConfigError("{name}: unknown key; did you mean {near}?", name=wrong, near=meant[wrong])
    return [
        (name.removeprefix(ENVIRONMENT_PREFIX).lower().replace("__", ".", 1), value, name)
        for name, value in sorted(environ.items())
        if name.startswith(ENVIRONMENT_PREFIX) and "__" in name
    ]


def _unknown(what: Message, name: str, known: Iterable[str]) -> Message:
    if near := nearest(name, known):
        return say("{what}; did you mean {near}?", what=what, near=near)
    return say("{what}; see 'wslgpud config show' for all keys", what=what)
