"""A dashboard as a page: the panels of Grafana's JSON, filled by a Prometheus, and drawn by us, for pictures without a Grafana.

`python -m headrace.testing.panel_page PROMETHEUS_URL OUT_DIRECTORY [MINUTES]` draws the chart's dashboard in Chromium: the
first row into headrace-overview.png, each closed row into a picture of its own.
"""

from __future__ import annotations

import html
import json
import re
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from headrace.testing import panel_draw
from headrace.testing.panel_draw import Series
from headrace.testing.prometheus import Prometheus

DASHBOARD = Path("deploy/helm/headrace/files/dashboards/headrace.json")
WIDTH = 1500
_LINE = 34  # pixels of one of Grafana's lines
_GAP = 8
_POINTS = 200
_STYLE = """
body{margin:0;padding:12px;background:#f4f5f5;font:13px/1.35 system-ui,'DejaVu Sans',sans-serif;color:#222}
h1{font-size:17px;margin:2px 0 10px} main{position:relative} main>div{position:absolute;box-sizing:border-box}
section{height:100%;box-sizing:border-box;background:#fff;border:1px solid #d5d7da;padding:8px 10px;overflow:hidden}
h3{margin:0;font-size:14px} .what{margin:1px 0 6px;color:#666;font-size:11px;line-height:1.3}
.none{color:#555;font-size:20px;text-align:center;margin-top:30px}
.numbers{display:flex;flex-wrap:wrap;justify-content:center;gap:10px 34px;padding-top:6px}
.number{text-align:center} .number b{display:block;font-size:40px;line-height:1.1} .number span{color:#444}
.name{font-size:20px;font-weight:600;line-height:1.3;margin:6px 4px;width:100%}
.name:not(:only-child){font-size:15px;margin:0 4px}
table{width:100%;border-spacing:0 3px} td{white-space:nowrap;padding:0 8px 0 0} td.bar{width:80%;background:#eceeef;padding:0}
td.bar+td{padding:0 0 0 8px;text-align:right} td.bar i{display:block;height:15px}
svg{display:block} svg text{font-size:11px;fill:#555} .grid{stroke:#e6e8ea}
.legend{display:flex;flex-wrap:wrap;gap:1px 14px;font-size:11.5px;padding-top:3px}
.legend i{display:inline-block;width:12px;height:3px;vertical-align:middle;margin-right:4px}
"""

Ask = Callable[[str, bool], list[dict[str, Any]]]


def main() -> None:
    """Draw the chart's dashboard from a Prometheus that runs."""
    from headrace.testing.browser import Browser

    url, out = sys.argv[1].rstrip("/"), Path(sys.argv[2])
    minutes = float(sys.argv[3]) if len(sys.argv) > 3 else 5.0
    out.mkdir(parents=True, exist_ok=True)
    prometheus = Prometheus(out, address=url.removeprefix("http://"))
    with Browser() as browser:
        for path in draw(prometheus, json.loads(DASHBOARD.read_text()), out, minutes):
            page = browser.open(path.resolve().as_uri(), width=WIDTH + 24, height=200)
            page.screenshot(path.with_suffix(".png"))
            page.close()
            path.unlink()


def draw(prometheus: Prometheus, board: dict[str, Any], out: Path, minutes: float) -> list[Path]:
    """Write a page for each row of the dashboard; the first is headrace-overview.html."""
    end_s = time.time()
    begin_s = end_s - 60 * minutes
    step_s = max(1.0, (end_s - begin_s) / _POINTS)

    def ask(expr: str, over_time: bool) -> list[dict[str, Any]]:
        expr = filled(expr)
        return prometheus.query_range(expr, begin_s, end_s, step_s) if over_time else prometheus.query(expr, end_s)

    rows = [(row["title"], row["panels"]) for row in board["panels"] if row["type"] == "row"]
    rows[0] = rows[0][0], [panel for panel in board["panels"] if panel["type"] != "row"]
    written = []
    for number, (title, panels) in enumerate(rows):
        name = "overview" if number == 0 else re.sub(r"\W+", "-", title.lower())
        path = out / f"headrace-{name}.html"
        path.write_text(page_of(title, panels, ask, (begin_s, end_s)))
        written.append(path)
    return written


def filled(expr: str, rate_interval: str = "20s") -> str:
    """An expression with Grafana's variables put in: all namespaces, trainings and ranks."""
    return re.sub(r"\$(namespace|job|rank)\b", ".*", expr.replace("$__rate_interval", rate_interval))


def series_of(panel: Mapping[str, Any], ask: Ask) -> list[Series]:
    """What a panel's expressions give, named as its legend says."""
    found = []
    for target in panel["targets"]:
        for one in ask(target["expr"], target["range"]):
            labels = one["metric"]
            name = target["legendFormat"]
            for label in re.findall(r"\{\{(\w+)\}\}", name):
                name = name.replace(f"{{{{{label}}}}}", labels.get(label, ""))
            points = one["values"] if "values" in one else [one["value"]]
            found.append(Series(name, tuple((float(t), float(value)) for t, value in points)))
    return found


def page_of(title: str, panels: list[dict[str, Any]], ask: Ask, span: tuple[float, float]) -> str:
    """A row of panels as one HTML page that loads nothing."""
    top = min(panel["gridPos"]["y"] for panel in panels)
    parts, lowest = [], 0
    for panel in panels:
        place = panel["gridPos"]
        width, height = place["w"] * WIDTH // 24 - _GAP, place["h"] * _LINE - _GAP
        x, y = place["x"] * WIDTH // 24, (place["y"] - top) * _LINE
        lowest = max(lowest, y + height)
        drawn = panel_draw.panel(panel, series_of(panel, ask), span, width - 22, height - 104)
        parts.append(f'<div style="left:{x}px;top:{y}px;width:{width}px;height:{height}px">{drawn}</div>')
    when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(span[1]))
    head = f"<h1>Headrace: {html.escape(title)} <small>{when}</small></h1>"
    return (
        f'<!doctype html><meta charset="utf-8"><title>{html.escape(title)}</title><style>{_STYLE}</style>{head}'
        f'<main style="width:{WIDTH}px;height:{lowest}px">{"".join(parts)}</main>'
    )


if __name__ == "__main__":
    main()
