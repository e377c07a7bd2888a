"""``python -m grafana.source``: write the dashboards."""

from __future__ import annotations

from pathlib import Path

from grafana.source import dashboards

FOLDER = Path(__file__).parent.parent / "dashboards"


def main() -> None:
    """Write each dashboard into its file."""
    FOLDER.mkdir(exist_ok=True)
    for name, text in dashboards().items():
        (FOLDER / f"{name}.json").write_text(text)


if __name__ == "__main__":
    main()
