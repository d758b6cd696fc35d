"""Makes Grafana's dashboard of the panels: `python -m headrace.telemetry.dashboards` writes the chart's file anew.

Needs the extra `dashboards`. Nothing in it names a data source: that is a variable, as are
namespace, training (`job`) and rank. It is of Grafana's first dashboard schema, which every Grafana since 9 imports; the second
needs 12.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

from grafana_foundation_sdk.builders import bargauge, common, stat, timeseries
from grafana_foundation_sdk.builders import dashboard as board
from grafana_foundation_sdk.builders.prometheus import Dataquery
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as kinds
from grafana_foundation_sdk.models import dashboard as models

from headrace.telemetry.panels import OVERVIEW, Panel, Row
from headrace.telemetry.panels_detail import DETAILS

FILE = Path("deploy/helm/headrace/files/dashboards/headrace.json")
ROWS = (OVERVIEW, *DETAILS)
COLUMNS = 24

_SOURCE = kinds.DataSourceRef(type_val="prometheus", uid="${datasource}")
_ALL = models.VariableOption(selected=True, text="All", value="$__all")
_VARIABLES = (
    ("namespace", "Namespace", "label_values(headrace_store_failing_seconds, namespace)"),
    ("job", "Training", 'label_values(headrace_job_ranks{namespace=~"$namespace"}, job)'),
    ("rank", "Rank", 'label_values(headrace_rank_elapsed_seconds_total{namespace=~"$namespace", job=~"$job"}, rank)'),
)

AnyPanel = timeseries.Panel | stat.Panel | bargauge.Panel


def main() -> None:
    """Write the dashboard to the path given, or to the chart's."""
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text())


def text() -> str:
    """The dashboard as Grafana imports it."""
    return json.dumps(json.loads(JSONEncoder(sort_keys=True).encode(build())), indent=1, sort_keys=True) + "\n"


def build() -> models.Dashboard:
    """All rows, laid out from left to right."""
    made = (
        board.Dashboard("Headrace")
        .uid("headrace")
        .description("Who waits for its input, why, and what to do. The first row answers; open the others for more.")
        .tags(["headrace", "training"])
        .time("now-1h", "now")
        .refresh("30s")
        .timezone("browser")
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .with_variable(board.DatasourceVariable("datasource").label("Data source").type("prometheus"))
    )
    for name, label, query in _VARIABLES:
        made.with_variable(_variable(name, label, query))
    top, number = 0, 1
    for row in ROWS:
        line = board.Row(row.title).id(number).grid_pos(models.GridPos(h=1, w=COLUMNS, x=0, y=top)).collapsed(row.closed)
        number, top = number + 1, top + 1
        placed = []
        for panel, place in layout(row, top):
            placed.append(_panel(panel).id(number).grid_pos(place))
            number += 1
        if row.closed:
            for builder in placed:
                line.with_panel(builder)
        made.with_row(line)
        if not row.closed:
            for builder in placed:
                made.with_panel(builder)
            top = max(place.y + place.h for _, place in layout(row, top))
    return made.build()


def layout(row: Row, top: int) -> Iterator[tuple[Panel, models.GridPos]]:
    """Where each panel of a row lies. top: the line below the row's title."""
    left, tallest = 0, 0
    for panel in row.panels:
        if left + panel.width > COLUMNS:
            left, top, tallest = 0, top + tallest, 0
        yield panel, models.GridPos(h=panel.height, w=panel.width, x=left, y=top)
        left, tallest = left + panel.width, max(tallest, panel.height)


def _variable(name: str, label: str, query: str) -> board.QueryVariable:
    # .* and not a list of all: a series without a namespace must not be lost.
    return (
        board.QueryVariable(name)
        .label(label)
        .datasource(_SOURCE)
        .query(query)
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.NATURAL_ASC)
        .include_all(True)
        .all_value(".*")
        .multi(True)
        .current(_ALL)
    )


def _panel(panel: Panel) -> AnyPanel:
    made: AnyPanel
    match panel.kind:
        case "lines" | "stack":
            made = _lines(panel)
        case "bars":
            made = bargauge.Panel().orientation(kinds.VizOrientation.HORIZONTAL).reduce_options(_last())
            made.display_mode(kinds.BarGaugeDisplayMode.BASIC)
        case _:
            made = stat.Panel().reduce_options(_last()).graph_mode(kinds.BigValueGraphMode.NONE)
            words = kinds.BigValueTextMode.NAME if panel.kind == "name" else kinds.BigValueTextMode.VALUE_AND_NAME
            made.text_mode(words).color_mode(kinds.BigValueColorMode.VALUE)
    made.title(panel.title).description(panel.description).datasource(_SOURCE).unit(panel.unit)
    if panel.least is not None:
        made.min(panel.least)
    if panel.most is not None:
        made.max(panel.most)
    if panel.nothing:
        made.no_value(panel.nothing)
    made.thresholds(_thresholds(panel))
    for shown, instead in panel.names:
        made.override_by_name(shown, [models.DynamicConfigValue(id_val="displayName", value=f"{shown}: {instead}")])
    for letter, query in zip("ABCD", panel.queries, strict=False):
        asked = Dataquery().ref_id(letter).expr(query.expr).legend_format(query.legend).datasource(_SOURCE)
        made.with_target(asked.range() if panel.kind in ("lines", "stack") else asked.instant())
    return made


def _lines(panel: Panel) -> timeseries.Panel:
    made = timeseries.Panel().line_width(1).show_points(kinds.VisibilityMode.NEVER)
    made.tooltip(common.VizTooltipOptions().mode(kinds.TooltipDisplayMode.MULTI).sort(kinds.SortOrder.DESCENDING))
    made.legend(
        common.VizLegendOptions()
        .show_legend(True)
        .display_mode(kinds.LegendDisplayMode.LIST)
        .placement(kinds.LegendPlacement.BOTTOM)
    )
    if panel.kind == "stack":
        made.fill_opacity(60).stacking(common.StackingConfig().mode(kinds.StackingMode.NORMAL).group("A"))
    return made.fill_opacity(10) if panel.kind == "lines" else made


def _last() -> common.ReduceDataOptions:
    return common.ReduceDataOptions().calcs(["lastNotNull"]).values(False)


def _thresholds(panel: Panel) -> board.ThresholdsConfig:
    steps = [models.Threshold(value=None, color="green" if panel.alarm is not None else "text")]
    if panel.warn is not None and panel.warn != panel.alarm:
        steps.append(models.Threshold(value=panel.warn, color="yellow"))
    if panel.alarm is not None:
        steps.append(models.Threshold(value=panel.alarm, color="red"))
    return board.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(steps)


if __name__ == "__main__":
    main()
