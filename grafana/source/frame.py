"""The frame of all dashboards: variables, links, annotations, time."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable
from typing import Any

from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as models

from grafana.source.kit import CRITICAL, DATASOURCE, NOTE, Panel, metric

TAG = "wslgpud"


def _variable(name: str, label: str, query: str, *, several: bool = False, pattern: str = "") -> Any:
    found = (
        builders.QueryVariable(name)
        .label(label)
        .datasource(DATASOURCE)
        .query({"query": query, "refId": name, "qryType": 3 if query.startswith("query_result") else 1})
        .definition(query)
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.ALPHABETICAL_ASC)
        .multi(several)
        .include_all(several)
    )
    if several:
        everything = models.VariableOption(text="All", value="$__all", selected=True)
        found = found.all_value(".+").current(everything)
    return found.regex(pattern) if pattern else found


def variables(*, machines: bool = False, cards: str = "") -> list[Any]:
    """Return datasource, job, instance and (``cards``: one or several) gpu, each narrowing the next."""
    source = builders.DatasourceVariable("datasource").label("Data source").type("prometheus")
    build = "wslgpud_build_info"
    found = [
        source,
        _variable("job", "Job", f"label_values({build}, job)", several=True),
        _variable("instance", "Machine", f'label_values({build}{{job=~"$job"}}, instance)', several=machines),
    ]
    if cards:
        # People read "0 NVIDIA GeForce ...", addresses keep the uuid, which survives another slot.
        info = metric("gpu")
        named = f'label_join({info}, "card", " ", "gpu", "name")'
        found.append(
            _variable(
                "gpu",
                "GPU",
                f"query_result({named})",
                several=cards == "several",
                pattern='/card="(?<text>[^"]+)".*uuid="(?<value>[^"]+)"/',
            )
        )
    return found


#: of bands, which may cover hours: Grafana draws their edges in full strength, and the curves matter more
_FAINT = "rgba(250, 222, 42, 0.25)"


def _annotation(name: str, expression: str, title: str, text: str, colour: str, *, on: bool = True) -> Any:
    return (
        builders.AnnotationQuery()
        .name(name)
        .datasource(DATASOURCE)
        .enable(on)
        .expr(expression)
        .title_format(title)
        .text_format(text)
        .icon_color(colour)
        .step("")
    )


def happenings() -> list[Any]:
    """Return the events drawn into every curve."""
    jumped = "changes({}[$__interval]) > 0"
    return [
        _annotation("Incidents", f"{metric('alert_level')} >= 2", "{{rule}}", "{{resource}}", _FAINT),
        _annotation(
            "OOM kills", f"increase({metric('oom_kills')}[$__interval]) > 0", "OOM kill", "{{instance}}", CRITICAL
        ),
        _annotation(
            # not when it started: the kernel reckons that from the clock, which WSL sets after each sleep of the host
            "Restarts of the machine",
            f"resets({metric('uptime_seconds')}[$__interval]) > 0",
            "Restart",
            "{{instance}}",
            NOTE,
        ),
        _annotation(
            "Stress runs",
            jumped.format(metric("vram_stress_last_run_timestamp_seconds")),
            "VRAM stress run",
            "GPU {{gpu}}",
            "purple",
            on=False,
        ),
        _annotation(
            "New version",
            f"{metric('build')} unless {metric('build')} offset $__interval",
            "wslgpud {{version}}",
            "{{instance}}",
            "#8e8e8e",
            on=False,
        ),
    ]


def _row(name: str) -> Any:
    return builders.Row(name).id(zlib.crc32(f"row {name}".encode()) % 1_000_000)


def _close_ranks(panels: list[Any]) -> None:
    """Put each folded row right below the one before: the SDK leaves room for the folded panels."""
    folded = [row for row in panels if row.get("panels")]
    for below, row in zip(folded[1:], folded, strict=False):
        up = below["gridPos"]["y"] - row["gridPos"]["y"] - 1
        for panel in (below, *below["panels"]):
            panel["gridPos"]["y"] -= up


def dashboard(
    uid: str,
    title: str,
    text: str,
    contents: Iterable[tuple[str, list[Panel]]],
    *,
    chosen: list[Any],
    folded: Iterable[tuple[str, list[Panel]]] = (),
    since: str = "now-1h",
    refresh: str = "10s",
    notes: bool = True,
) -> str:
    """Return a dashboard as JSON.

    ``contents`` are rows: a title ("" for none) and panels; ``folded`` ones come last, and Grafana runs their
    queries only when somebody opens them.
    """
    board = (
        builders.Dashboard(title)
        .uid(uid)
        .description(text)
        .tags([TAG])
        .timezone("browser")
        .readonly()
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .time(since, "now")
        .refresh(refresh)
        .variables(chosen)
        .link(
            builders.DashboardLink("wslgpud")
            .type(models.DashboardLinkType.DASHBOARDS)
            .tags([TAG])
            .as_dropdown(True)
            .include_vars(True)
            .keep_time(True)
            .icon("external link")
            .tooltip("All wslgpud dashboards")
        )
    )
    if notes:
        board = board.annotations(happenings())
    for name, panels in contents:
        if name:
            board = board.with_row(_row(name))
        for panel in panels:
            board = board.with_panel(panel)
    for name, panels in folded:
        row = _row(name)
        for panel in panels:
            row = row.with_panel(panel)
        board = board.with_row(row)
    document = json.loads(JSONEncoder(sort_keys=True, indent=2).encode(board.build()))
    document["id"] = None
    _close_ranks(document["panels"])
    inner = [panel for row in document["panels"] for panel in row.get("panels", [])]
    for panel in [*document["panels"], *inner]:
        panel.get("options", {}).pop("footer", None)  # the SDK's default; Grafana 13 knows none
    document["schemaVersion"] = 41  # Grafana 11.6 and 12.0 know 41, and we use nothing that 42 adds
    return json.dumps(document, indent=1, sort_keys=True) + "\n"
