"""Every metric of the program, gathered from the modules that declare them."""

from __future__ import annotations

from wslgpud import sampler, systemd, verdict
from wslgpud.advise import rounds
from wslgpud.alerts import metrics as alerts
from wslgpud.metrics import Catalogue
from wslgpud.risk import metrics as risk
from wslgpud.serve import health, otlp
from wslgpud.sources.registry import SOURCES
from wslgpud.store import metrics as store
from wslgpud.stress import metrics as stress


def catalogue() -> Catalogue:
    """Return all families, in the order in which they are exposed.

    Raises:
        ValueError: two modules declare the same name.
    """
    sources = (spec for source in SOURCES for spec in source.metrics)
    return Catalogue(
        (
            *sources,
            *sampler.METRICS,
            *risk.METRICS,
            *verdict.METRICS,
            *stress.METRICS,
            *rounds.METRICS,
            *alerts.METRICS,
            *store.METRICS,
            *systemd.METRICS,
            *health.METRICS,
            otlp.PUSHES,
        )
    )


def table() -> str:
    """Return the README's table of metrics, in Markdown."""
    lines = ["| metric | kind | labels | meaning |", "|---|---|---|---|"]
    lines += [
        f"| `{spec.sample}` | {spec.kind} | {', '.join(spec.labels)} | {spec.help} |" for spec in catalogue()
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(table(), end="")  # noqa: T201 - its output is the README's table
