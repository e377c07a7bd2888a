"""Keeps secrets and control characters out of screens, logs, messages, captures and the API.

Secrets go in two ways. Values that the configuration declares secret are known: ``visible`` shows as much of them as
declared, ``without`` removes them from a text. In foreign text (process titles, kernel lines, a server's answer) only
patterns help: ``masked`` knows the usual ones.

Names of cgroups, programs and files, kernel lines, answers of workers and rows of a foreign database may hold control
characters. ``install_boundary`` puts a ``Boundary`` in front of standard output and standard error, so that ``print``,
Click, warnings, tracebacks and log lines all pass it. Only ``wslgpud.cli.console.Console`` writes beneath it, because
colours are escape sequences, too; it cleans the text between them.
"""

from __future__ import annotations

import functools
import io
import re
import sys
import urllib.parse
from collections.abc import Iterable
from typing import Any, Literal, TextIO

from wslgpud.words import Fact, Message, MessageError, MessageLike
from wslgpud.words.units import printable

#: How much of a value may be seen: all of it, only that it is set, the address of a URL, the program of a command; a
#: person's name by everybody but strangers.
Shown = Literal["all", "set", "address", "program", "person"]
SECRET = "(secret)"  # noqa: S105 - its replacement
#: shorter parts of a known secret occur in ordinary words
_SHORTEST = 4
#: bounded, and anchored at the start of a word: a long line must not take quadratic time
_NAME = r"(?<![\w.-])[\w.-]{0,64}?(?:key|token|secret|passw|pwd|auth|credential)[\w.-]{0,64}"
_VALUE = r"""(?:"[^"]*"|'[^']*'|[^\s,;&"']+)"""
#: The text before a secret is kept, to show its kind.
_FORMS = re.compile(
    rf"""
      (?P<kept>
        (?<=://)(?=[^\s"'<>]{{0,512}}@)                            # user:password@ up to the last @, below
      | [?&][\w.~%\[\]-]{{1,64}}=                         # every value of a query
      | {_NAME}["']?\s*=\s*(?:(?:bearer|basic|token)\s+)?   # api_key=, --token=, PASSWORD=
      | ["']{_NAME}["']\s*:\s*                              # "token": in JSON
      | (?<!\S)(?=-){_NAME}\s+(?!-)                         # --password and a word behind it
      | \b(?:authorization\s*:\s*)?(?:bearer|basic)\s+(?=\S{{8}})
      | \bhooks\.slack\.com/(?:services|workflows)/ | \bdiscord(?:app)?\.com/api/webhooks/
      | \bapi\.telegram\.org/bot
      )
      (?P<rest>(?<=://)[^\s"'<>]{{0,512}}(?=@) | {_VALUE})
    | \b(?:
        [spr]k[-_][\w-]{{20,}}                              # OpenAI, Anthropic, Stripe
      | gh[pousr]_\w{{16,}} | github_pat_\w{{16,}} | glpat-[\w-]{{16,}} | hf_\w{{16,}}
      | xox[a-z]-[\w-]{{10,}} | (?:AKIA|ASIA)[0-9A-Z]{{12,}} | AIza[\w-]{{30,}}
      | eyJ[\w-]{{8,4096}}\.[\w-]+(?:\.[\w-]*)?            # JSON Web Tokens
      | (?=[a-z]*\d)(?=\d*[a-z])[a-z\d]{{32,}}={{0,2}}      # long runs of hexadecimal digits or base64
      )(?!\w)
    """,
    re.VERBOSE | re.IGNORECASE,
)


def masked(text: str) -> str:
    """Return a text without likely secrets: values with telling names, tokens, passwords in URLs."""
    return _FORMS.sub(_hidden, text)


def _hidden(match: re.Match[str]) -> str:
    kept, rest = match["kept"] or "", match["rest"] or ""
    quote = rest[0] if rest[:1] in ('"', "'") else ""  # JSON stays JSON
    return f"{kept}{quote}{SECRET}{quote}"


class MaskedError(MessageError):
    """An error that is shown, logged or stored and may quote foreign text: likely secrets are removed."""

    def __init__(self, message: MessageLike, /, **facts: Fact) -> None:
        """Take the message; one that quotes a secret becomes English text without it."""
        message = Message(message, facts) if facts and isinstance(message, str) else message
        text = str(message)
        hidden = masked(text)
        super().__init__(message if hidden == text else hidden)


@functools.lru_cache(maxsize=2048)
def named(text: str) -> str:
    """Return a foreign name (of a program, a command, a device), cleaned.

    It is printable on one line and contains no likely secret.
    """
    return masked(printable(text))


def address(url: str, *, path: bool = False) -> str:
    """Return scheme, host and port of a URL; anything else unchanged.

    Users and passwords are secret, as are path, query and fragment of webhook URLs; ``path`` keeps the path, where it
    names a database. A URL may be malformed: a password with an @ or a / in it.
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        return url
    place, slash, behind = re.split(r"([/?#]|$)", rest, maxsplit=1)
    if "@" in behind:  # perhaps half a password
        return f"{scheme}://{SECRET}"
    shown = f"{scheme}://{place.rpartition('@')[2]}"
    if path and slash == "/":
        return f"{shown}/{re.split('[?#]', behind, maxsplit=1)[0]}"
    return shown


def visible(value: Any, shows: Shown, *, to_stranger: bool = False) -> Any:
    """Return the visible part of a value, in the same type (a text, a tuple of texts)."""
    if shows == "all" or not value or (shows == "person" and not to_stranger):
        return value
    if shows == "address":
        return tuple(map(address, value)) if isinstance(value, tuple) else address(value)
    return (value[0], SECRET)[: len(value)] if shows == "program" else SECRET


def parts(url: str) -> list[str]:
    """Return the parts of a URL that ``address`` hides: errors of other programs may quote them."""
    try:
        parsed = urllib.parse.urlsplit(url)
        # Where a password contains an @, other parsers take its end for a part of the host.
        secret = [*re.split("[:@]", parsed.netloc.rpartition("@")[0]), parsed.path, parsed.fragment]
    except ValueError:
        return [url]
    pairs = [value for _, value in urllib.parse.parse_qsl(parsed.query)]
    quoted = filter(None, [*secret, parsed.query, *pairs])
    return [url, *(form for text in quoted for form in (text, urllib.parse.unquote(text)))]


def without(text: str, secrets: Iterable[str]) -> str:
    """Return a text without these values; very short ones stay, as they occur in ordinary words."""
    for secret in sorted({s for s in secrets if len(s) >= _SHORTEST}, key=len, reverse=True):
        text = text.replace(secret, SECRET)
    return text


class Boundary(io.TextIOBase):
    """A stream that passes text on without control characters.

    It claims to be no terminal and has neither ``buffer`` nor ``fileno()``: code that would colour its output or write
    past it falls back to plain text.
    """

    def __init__(self, beneath: TextIO) -> None:
        self.beneath = beneath

    def writable(self) -> bool:
        return True

    def write(self, text: str | bytes) -> int:
        """Pass the text on; line feeds and tabs are layout and stay."""
        if isinstance(text, bytes):  # Click's, for want of a ``buffer``: the values that a shell completes
            text = text.decode(errors="replace")
        self.beneath.write(printable(text, layout="\n\t"))
        return len(text)

    def flush(self) -> None:
        self.beneath.flush()


def install_boundary() -> None:
    """Put a boundary in front of standard output and standard error, once."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):
            # A terminal without UTF-8 shows ? instead of bars and unsupported names; no traceback.
            stream.reconfigure(errors="replace")
        if stream is not None and not isinstance(stream, Boundary):  # None: closed by the parent process
            setattr(sys, name, Boundary(stream))


def beneath(stream: TextIO) -> TextIO:
    """Return the stream beneath a boundary, for code that cleans text itself; any other stream unchanged."""
    return stream.beneath if isinstance(stream, Boundary) else stream
