"""``python -m grafana.source``: write the dashboards."""

from __future__ import annotations

from pathlib import Path

from grafana.source import fleet, itself, one_gpu, overview, runbook, stress

FOLDER = Path(__file__).parent.parent / "dashboards"


def dashboards() -> dict[str, str]:
    """Return every dashboard as JSON, by the name of its file."""
    return {
        "overview": overview.overview(),
        "gpu": one_gpu.one_gpu(),
        "stress": stress.stress(),
        "daemon": itself.itself(),
        "fleet": fleet.fleet(),
        "runbook": runbook.runbook(),
    }


def main() -> None:
    """Write each dashboard into its file."""
    FOLDER.mkdir(exist_ok=True)
    for name, text in dashboards().items():
        (FOLDER / f"{name}.json").write_text(text)


if __name__ == "__main__":
    main()
