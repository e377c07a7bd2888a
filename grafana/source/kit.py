"""The look and the queries of our dashboards: colours, thresholds and the shapes of panels, in one place."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from grafana_foundation_sdk.builders import bargauge, heatmap, prometheus, stat, statetimeline, table, timeseries
from grafana_foundation_sdk.builders import common as common_builders
from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.models import common
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models import heatmap as heatmap_models
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from wslgpud.alerts.rules import rule_named
from wslgpud.app.catalogue import catalogue
from wslgpud.colors import LEVELS as LEVEL_SHADES
from wslgpud.model import Level
from wslgpud.risk.settings import RiskSettings

DATASOURCE = common.DataSourceRef(type_val="prometheus", uid="${datasource}")
LEVEL_COLOURS = {level: shade.grafana for level, shade in LEVEL_SHADES.items()}
GOOD, NOTE, WARNING, CRITICAL, EMERGENCY = (LEVEL_COLOURS[level] for level in Level)
NEUTRAL, NOT_HERE = "text", "#8e8e8e"
#: from a point of any curve to the quarter of an hour around it, about as long as an incident lasts:
#: https://grafana.com/docs/grafana/latest/dashboards/use-dashboards/#control-the-time-range-using-a-url
MOMENT_SECONDS = 900
MOMENT_URL = (
    "/d/wslgpud-overview?${datasource:queryparam}&${job:queryparam}&${instance:queryparam}"
    f"&time=${{__value.time}}&time.window={1000 * MOMENT_SECONDS}"
)
#: from a beginning in milliseconds until now
SINCE_URL = (
    "/d/wslgpud-overview?${datasource:queryparam}&${job:queryparam}&${instance:queryparam}&from=${__value.raw}&to=now"
)
#: value of a query where the machine answers but has no such thing: neither 0 nor "No data"
NOT_AVAILABLE = -1
RISK = RiskSettings()
_METRICS = catalogue()

Panel = Any  # the SDK's builders share no base class
Steps = Sequence[tuple[float | None, str]]


# Queries


def metric(name: str, *matchers: str, **labels: str) -> str:
    """Return the selector of a metric for the chosen machines; ``labels`` must be equal, ``matchers`` are PromQL.

    Raises:
        KeyError: the catalogue has no such metric.
    """
    equal = (f'{label}="{value}"' for label, value in labels.items())
    chosen = ", ".join(('job=~"$job"', 'instance=~"$instance"', *matchers, *equal))
    return f"{_METRICS[name].exposed_name}{{{chosen}}}"


def gpu(name: str, *matchers: str, **labels: str) -> str:
    """Return the selector of a metric for the chosen GPUs."""
    return metric(name, 'uuid=~"$gpu"', *matchers, **labels)


def rate(selector: str) -> str:
    """Return the increase of a counter per second."""
    return f"rate({selector}[$__rate_interval])"


def for_gpu(selector: str) -> str:
    """Give the series of resources (gpu0, ...) the uuid of the chosen GPUs, and drop all others."""
    cards = f'label_replace({gpu("gpu_up")} * 0 + 1, "resource", "gpu$1", "gpu", "(.*)")'
    return f"{selector} * on (job, instance, resource) group_left (gpu, uuid) {cards}"


def or_not_here(expression: str, unsupported: str) -> str:
    """Return ``expression``, or -1 where ``unsupported`` says that the card has no such thing."""
    return f"{expression} or ({gpu('gpu_field_supported', field=unsupported)} == 0) - 1"


def ask(expression: str, legend: str = "", *, now: bool = False, rows: bool = False, every: str = "") -> Any:
    """Return a query; ``now`` is for the newest value alone, ``rows`` for a table."""
    query = prometheus.Dataquery().expr(expression).datasource(DATASOURCE).legend_format(legend or "__auto")
    query = query.instant() if now or rows else query.range()
    if rows:
        query = query.format(PromQueryFormat.TABLE)
    return query.interval(every) if every else query


# Colours and words


def steps(*pairs: tuple[float | None, str]) -> builders.ThresholdsConfig:
    """Return thresholds: from each value on, its colour."""
    found = [models.Threshold(value=value, color=colour) for value, colour in pairs]
    return builders.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(found)


def steps_of(rule_name: str, base: str = GOOD) -> builders.ThresholdsConfig:
    """Return the steps of an alert as thresholds of a panel.

    Raises:
        ValueError: there is no such rule.
    """
    rule = rule_named(rule_name)
    if rule is None:
        raise ValueError(f"no rule {rule_name}")
    levels = [(one.value, LEVEL_COLOURS[one.level]) for one in rule.thresholds]
    if not rule.falling:
        return steps((None, base), *levels)
    colours = [*(colour for _, colour in reversed(levels)), base]
    return steps(*zip([None, *(value for value, _ in reversed(levels))], colours, strict=True))


def words(meanings: Mapping[float, tuple[str, str]]) -> list[models.ValueMapping]:
    """Return value mappings: value -> (text, colour)."""
    results = {
        f"{value:g}": models.ValueMappingResult(text=text, color=colour, index=i)
        for i, (value, (text, colour)) in enumerate(meanings.items())
    }
    return [models.ValueMap(options=results)]


LEVELS = words({int(level): (level.label, colour) for level, colour in LEVEL_COLOURS.items()})
NOT_HERE_WORDS = words({NOT_AVAILABLE: ("N/A", NOT_HERE)})
TIME_LEFT_STEPS: Steps = ((None, CRITICAL), (RISK.critical_eta_seconds, WARNING), (RISK.warn_eta_seconds, GOOD))
TIME_LEFT_WORDS = words({NOT_AVAILABLE: ("not running out", GOOD)})


# Panels


def _dressed(panel: Panel, title: str, text: str, queries: Iterable[Any], width: int, height: int) -> Panel:
    panel = panel.title(title).description(text).datasource(DATASOURCE).span(width).height(height)
    panel = panel.id(zlib.crc32(title.encode()) % 1_000_000)  # links to it survive a new order
    for index, query in enumerate(queries):
        panel = panel.with_target(query.ref_id(chr(ord("A") + index)))
    return panel


def _by_thresholds() -> Any:
    return builders.FieldColor().mode(models.FieldColorModeId.THRESHOLDS)


def _legend(*, figures: bool = False) -> Any:
    """Return a legend below the curves, or with ``figures`` beside them as a table."""
    place = common.LegendPlacement.RIGHT if figures else common.LegendPlacement.BOTTOM
    mode = common.LegendDisplayMode.TABLE if figures else common.LegendDisplayMode.LIST
    legend = common_builders.VizLegendOptions().show_legend(True).placement(place).display_mode(mode)
    return legend.calcs(["lastNotNull", "max"] if figures else [])


def _last() -> Any:
    return common_builders.ReduceDataOptions().calcs(["lastNotNull"]).values(False)


def figure(
    title: str,
    text: str,
    *queries: Any,
    unit: str = "none",
    width: int = 4,
    height: int = 4,
    thresholds: Any = None,
    mappings: Any = (),
    background: bool = False,
    spark: bool = False,
    names: bool = False,
    decimals: float | None = 0,
    colour: str = "",
) -> Panel:
    """Return a large figure, of several series each with its name; ``names`` shows the names instead of values."""
    mode = common.BigValueColorMode.BACKGROUND if background else common.BigValueColorMode.VALUE
    panel = (
        stat.Panel()
        .color_scheme(_by_thresholds())
        .unit(unit)
        .reduce_options(_last())
        .color_mode(mode)
        .graph_mode(common.BigValueGraphMode.AREA if spark else common.BigValueGraphMode.NONE)
        .text_mode(common.BigValueTextMode.NAME if names else common.BigValueTextMode.AUTO)
        .justify_mode(common.BigValueJustifyMode.AUTO)
        .wide_layout(True)
        .mappings(list(mappings))
        .thresholds(thresholds or steps((None, colour or NEUTRAL)))
    )
    if decimals is not None and not names:
        panel = panel.decimals(decimals)
    if names:
        panel = panel.text(common_builders.VizTextDisplayOptions().value_size(28))
    return _dressed(panel, title, text, queries, width, height)


def bars(
    title: str, text: str, query: Any, *, unit: str, width: int, height: int, thresholds: Any, full: float | None
) -> Panel:
    """Return horizontal bars, one a series."""
    panel = (
        bargauge.Panel()
        .color_scheme(_by_thresholds())
        .unit(unit)
        .min(0)
        .thresholds(thresholds)
        .text(common_builders.VizTextDisplayOptions().title_size(13).value_size(18))
        .reduce_options(_last())
        .orientation(common.VizOrientation.HORIZONTAL)
        .display_mode(common.BarGaugeDisplayMode.BASIC)
        .value_mode(common.BarGaugeValueMode.COLOR)
        .show_unfilled(True)
        .max_viz_height(44)
        .name_placement(common.BarGaugeNamePlacement.AUTO)
    )
    if full is not None:
        panel = panel.max(full)
    return _dressed(panel, title, text, [query], width, height)


def lines(
    title: str,
    text: str,
    *queries: Any,
    unit: str,
    width: int = 8,
    height: int = 8,
    least: float | None = 0,
    most: float | None = None,
    stacked: bool = False,
    thresholds: Any = None,
    fill: float | None = None,
    table_legend: bool = False,
    soft_most: float | None = None,
    decimals: float | None = None,
) -> Panel:
    """Return curves over time; ``thresholds`` are drawn as dashed lines."""
    # Several shaded curves on top of each other hide one another.
    shaded = fill if fill is not None else 10 if len(queries) == 1 else 0
    panel = (
        timeseries.Panel()
        .unit(unit)
        .line_width(1)
        .fill_opacity(60 if stacked else shaded)
        .gradient_mode(common.GraphGradientMode.NONE)
        .show_points(common.VisibilityMode.NEVER)
        .line_interpolation(common.LineInterpolation.LINEAR)
        .axis_border_show(False)
        .span_nulls(False)
        .tooltip(
            common_builders.VizTooltipOptions()
            .mode(common.TooltipDisplayMode.MULTI)
            .sort(common.SortOrder.NONE if stacked else common.SortOrder.DESCENDING)
        )
    )
    panel = panel.color_scheme(builders.FieldColor().mode(models.FieldColorModeId.PALETTE_CLASSIC))
    panel = panel.legend(_legend(figures=table_legend))
    panel = panel.data_links([builders.DashboardLink("This moment on the overview").type("link").url(MOMENT_URL)])
    if least is not None:
        panel = panel.min(least)
    if most is not None:
        panel = panel.max(most)
    if soft_most is not None:
        panel = panel.axis_soft_max(soft_most)
    if decimals is not None:
        panel = panel.decimals(decimals)
    if stacked:
        panel = panel.stacking(common_builders.StackingConfig().mode(common.StackingMode.NORMAL).group("A"))
    style = common.GraphThresholdsStyleMode.DASHED if thresholds else common.GraphThresholdsStyleMode.OFF
    panel = panel.thresholds_style(common_builders.GraphThresholdsStyleConfig().mode(style))
    panel = panel.thresholds(thresholds or steps((None, GOOD)))
    return _dressed(panel, title, text, queries, width, height)


def states(
    title: str, text: str, query: Any, mappings: Any, *, width: int = 24, height: int = 6, said: bool = True
) -> Panel:
    """Return a band for each series, coloured by the meaning of its values; with ``said`` the words are in it."""
    panel = (
        statetimeline.Panel()
        .color_scheme(_by_thresholds())
        .mappings(list(mappings))
        .merge_values(True)
        .row_height(0.85)
        .fill_opacity(80)
        .line_width(0)
        .legend(_legend())
        .show_value(common.VisibilityMode.AUTO if said else common.VisibilityMode.NEVER)
        .tooltip(common_builders.VizTooltipOptions().mode(common.TooltipDisplayMode.SINGLE).sort(common.SortOrder.NONE))
    )
    return _dressed(panel, title, text, [query], width, height)


def heat(title: str, text: str, query: Any, *, unit: str) -> Panel:
    """Return a heat map with one row a series."""
    colours = (
        heatmap.HeatmapColorOptions()
        .mode(heatmap_models.HeatmapColorMode.SCHEME)
        .scheme("RdYlGn")
        .steps(64)
        .fill("dark-orange")
        .exponent(0.5)
        .reverse(False)
    )
    panel = (
        heatmap.Panel()
        .calculate(False)
        .cell_gap(1)
        .cell_values(heatmap.CellValues().unit(unit))
        .color(colours)
        .y_axis(heatmap.YAxisConfig().axis_placement(common.AxisPlacement.LEFT).reverse(True))
        .show_legend()
    )
    return _dressed(panel, title, text, [query], width=24, height=10)


def rows(title: str, text: str, *queries: Any, columns: Mapping[str, str], width: int = 24, height: int = 8) -> Panel:
    """Return a table; ``columns`` are the labels shown and their headings, in order, all others are hidden."""
    # Grafana's own 150 would push the last columns of a narrow table out of sight.
    panel = table.Panel().show_header(True).cell_height(common.TableCellHeight.SM).min_width(50)
    if len(queries) > 1:
        panel = panel.with_transformation(models.DataTransformerConfig(id_val="merge", options={}))
    order = {name: index for index, name in enumerate(columns)}
    kept = {"include": {"names": list(columns)}}
    panel = panel.with_transformation(models.DataTransformerConfig(id_val="filterFieldsByName", options=kept))
    arranged = {"indexByName": order, "renameByName": dict(columns), "excludeByName": {}}
    panel = panel.with_transformation(models.DataTransformerConfig(id_val="organize", options=arranged))
    return _dressed(panel, title, text, queries, width, height)


def override(panel: Panel, name: str, **properties: Any) -> Panel:
    """Change the look of one series or column; ``__`` stands for a dot (custom__lineWidth)."""
    found = [models.DynamicConfigValue(id_val=k.replace("__", "."), value=v) for k, v in properties.items()]
    return panel.override_by_name(name, found)


def coloured(panel: Panel, colours: Mapping[str, str]) -> Panel:
    """Give series of a panel their colours by name."""
    for name, colour in colours.items():
        override(panel, name, color={"mode": "fixed", "fixedColor": colour})
    return panel


def limit_line(panel: Panel, name: str, colour: str = CRITICAL) -> Panel:
    """Draw a series as a dashed limit: no fill, never stacked."""
    return override(
        panel,
        name,
        color={"mode": "fixed", "fixedColor": colour},
        custom__fillOpacity=0,
        custom__lineStyle={"fill": "dash", "dash": [8, 6]},
        custom__stacking={"mode": "none", "group": "A"},
    )


def dashed(panel: Panel, pattern: str) -> Panel:
    """Draw all series whose name matches as dashed limits."""
    look = {
        "custom.lineStyle": {"fill": "dash", "dash": [8, 6]},
        "custom.fillOpacity": 0,
        "color": {"mode": "fixed", "fixedColor": CRITICAL},
    }
    return panel.override_by_regexp(pattern, [models.DynamicConfigValue(id_val=k, value=v) for k, v in look.items()])
