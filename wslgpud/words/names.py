"""Names of levels and states, by which they stand in JSON and metrics."""

from __future__ import annotations

from wslgpud.words import template

LEVELS = {
    "ok": template("ok"),
    "info": template("info"),
    "warning": template("warning"),
    "critical": template("critical"),
    "emergency": template("emergency"),
    "unknown": template("unknown"),
}
#: of a source, see ``wslgpud.model.Health``
HEALTHS = {
    "ok": template("ok"),
    "absent": template("not on this machine"),
    "failed": template("failed"),
    "late": template("late"),
}
