"""The committed dashboards, and their queries as Grafana would send them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).parent.parent.parent / "grafana" / "dashboards"
DASHBOARDS: dict[str, Any] = {
    (document := json.loads(file.read_text()))["uid"]: document for file in sorted(FOLDER.glob("*.json"))
}


class Query(NamedTuple):
    """One query of one panel."""

    dashboard: str
    panel: str
    ref: str
    expression: str
    #: asked for a moment, not for a stretch of time
    instant: bool = False

    def asked(self, instance: str, gpu: str = ".+", rate: str = "1m", span: str = "1h", step: str = "1s") -> str:
        """Put values in the place of variables, as Grafana does."""
        values = {
            "job": ".+",
            "instance": instance.replace(".", "\\\\.") or ".+",
            "gpu": gpu,
            "__rate_interval": rate,
            "__interval": step,
            "__range": span,
        }
        return re.sub(r"\$(\w+)", lambda match: values.get(match[1], match[0]), self.expression)


def panels(document: Any) -> Iterator[Any]:
    """Yield all panels of a dashboard, those in collapsed rows included; no rows."""
    for panel in document["panels"]:
        if panel["type"] == "row":
            yield from panel.get("panels") or []
        else:
            yield panel


QUERIES = [
    Query(uid, panel["title"], target["refId"], target["expr"], bool(target.get("instant")))
    for uid, document in DASHBOARDS.items()
    for panel in panels(document)
    for target in panel.get("targets") or []
]
ANNOTATIONS = [
    Query(uid, "annotation", note["name"], note["expr"])
    for uid, document in DASHBOARDS.items()
    for note in (document.get("annotations") or {}).get("list") or []
    if "expr" in note
]
