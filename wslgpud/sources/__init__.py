"""Sources: each file declares its metrics and reads them. They never import one another."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from wslgpud.config import Config
from wslgpud.host import Host
from wslgpud.metrics import MetricSpec
from wslgpud.model import Reading, Sample


class Source(ABC):
    """One kind of thing to read.

    The sampler calls ``read`` in a thread of its ``lane``: sources of one lane run one after another, and
    a lane that hangs leaves the others alone. Whatever may hang (a driver, 9p, a command) has its own lane.
    """

    name: ClassVar[str]
    metrics: ClassVar[tuple[MetricSpec, ...]] = ()
    lane: ClassVar[str] = "kernel"
    #: read at most this often; 0 means at every tick (a source may take it from the configuration)
    period_seconds: float = 0.0
    #: how long a read may take; after that the source is late, and what it said before is not repeated
    deadline_seconds: ClassVar[float] = 0.5
    #: cheap enough, and needed, for the extra ticks when headroom shrinks
    fast: ClassVar[bool] = False

    def __init__(self, host: Host, config: Config) -> None:
        self.host = host
        self.config = config
        self._prepare()

    def _prepare(self) -> None:  # noqa: B027 - most sources remember nothing
        """Set up what the source remembers; nothing is read yet."""

    @abstractmethod
    def read(self) -> Sample:
        """Return what is known now.

        Raises:
            NoData: the machine lacks this thing; not a fault.
            SourceError: the thing is there and could not be read.
        """

    def own(self) -> tuple[Reading, ...]:
        """Return readings of the source's own state, which hold while ``read`` fails or hangs, too.

        Called from any thread; must not block. Only metrics that are not stored.
        """
        return ()

    def close(self) -> None:  # noqa: B027 - most sources hold nothing
        """Give back what the source holds (a child process, a file handle)."""
