"""Prometheus' rules and Grafana's dashboard: every metric, label and page that they name is there."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard

from kmirror.errors import Reason
from kmirror.web.metrics import JOBS, METRICS, Metric
from kmirror.web.run_metrics import PHASES, RUN_METRICS

ROOT = Path(__file__).parent.parent.parent
RULES = yaml.safe_load((ROOT / "deploy/prometheus/rules.yml").read_text())
DASHBOARD = json.loads((ROOT / "deploy/grafana/kmirror.json").read_text())

#: What Prometheus adds to every series that it scrapes.
_TARGET = {"job", "instance"}
DECLARED: list[Metric[Any]] = [*METRICS, *RUN_METRICS]


def series_of(metric: Metric[Any], mirrors: set[str]) -> dict[str, set[str]]:
    """Return the series that a metric is, with their labels; a histogram is three of them."""
    labels = _TARGET | mirrors | set(metric.labels)
    if metric.kind != "histogram":
        return {metric.name: labels}
    return {f"{metric.name}_{part}": labels | {"le"} for part in ("bucket", "count", "sum")}


SERIES: dict[str, set[str]] = {"up": _TARGET}
for _one in DECLARED:
    SERIES |= series_of(_one, {"cluster", "mirror"} if _one in METRICS else set())

ALERTS = [rule for group in RULES["groups"] for rule in group["rules"]]
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
EXPRESSIONS = [pytest.param(rule["expr"], id=rule["alert"]) for rule in ALERTS] + [
    pytest.param(target["expr"], id=panel["title"]) for panel in PANELS for target in panel["targets"]
]


def parts(expression: Any) -> Iterator[Any]:
    """Yield the expression and all that it is made of."""
    yield expression
    for name in ("lhs", "rhs", "expr", "vector_selector", "param"):
        if (inner := getattr(expression, name, None)) is not None and not isinstance(inner, str):
            yield from parts(inner)
    for inner in getattr(expression, "args", None) or ():
        yield from parts(inner)


def kind_of(kind: type, expression: Any) -> list[Any]:
    """Return the parts of this kind."""
    return [part for part in parts(expression) if isinstance(part, kind)]


def labels_of(expression: Any) -> set[str]:
    """Return the labels that may be on what an expression is made of."""
    return set[str]().union(*(SERIES[found.name] for found in kind_of(promql_parser.VectorSelector, expression)))


@pytest.mark.parametrize("text", EXPRESSIONS)
def test_an_expression_names_metrics_and_labels_that_are_served(text: str) -> None:
    text = text.replace("$__rate_interval", "1m").replace("$mirror", "m").replace("$cluster", "c")
    expression = promql_parser.parse(text)
    selectors = kind_of(promql_parser.VectorSelector, expression)
    assert {found.name for found in selectors} <= SERIES.keys()
    assert len(selectors) == len(re.findall(r"\b(?:kmirror_\w+|up)\b", text)), "all of them were found"
    for selector in selectors:
        assert {matcher.name for matcher in selector.matchers.matchers} <= SERIES[selector.name]
    for aggregate in kind_of(promql_parser.AggregateExpr, expression):
        kept = set(aggregate.modifier.labels) if aggregate.modifier is not None else set[str]()
        assert kept <= labels_of(aggregate.expr)
        assert "cluster" in kept or "mirror" not in kept, "mirrors of one name on two clusters are not the same"
    for call in kind_of(promql_parser.Call, expression):
        if call.func.name in ("rate", "increase"):
            (selector,) = kind_of(promql_parser.VectorSelector, call)
            assert selector.name.endswith(("_total", "_bucket")), "only counters have a rate"


def test_values_that_are_asked_for_exist() -> None:
    text = json.dumps([RULES, DASHBOARD])
    asked = {word for found in re.findall(r'reason=~?\\+"([A-Z_|]+)\\+"', text) for word in found.split("|")}
    assert asked
    assert asked <= set(map(str, Reason))
    assert set(re.findall(r'phase=~?\\+"([a-z|]+)\\+"', text)) <= set(PHASES)
    (stale,) = (rule for rule in ALERTS if rule["alert"] == "KmirrorSyncStale")
    assert all(name in stale["annotations"]["description"] for name in JOBS.values())


def test_no_label_of_ours_is_one_that_prometheus_sets_itself() -> None:
    assert [one.name for one in DECLARED if _TARGET & set(one.labels)] == []


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_an_alert_says_what_it_means_and_where_to_read_on(rule: dict[str, Any]) -> None:
    assert rule.keys() <= {"alert", "expr", "for", "labels", "annotations"}
    assert rule["labels"].keys() == {"severity"}
    assert rule["labels"]["severity"] in ("critical", "warning")
    assert rule["annotations"].keys() == {"summary", "description", "runbook_url"}
    text = rule["annotations"]["summary"] + rule["annotations"]["description"]
    named = set(re.findall(r"\$labels\.(\w+)", text))
    expression = promql_parser.parse(rule["expr"])
    kept = [aggregate.modifier.labels for aggregate in kind_of(promql_parser.AggregateExpr, expression)]
    assert named <= (set[str]().union(*kept) if kept else labels_of(expression))
    page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
    headings = re.findall(r"^#+ (.+)$", (ROOT / page).read_text(), re.MULTILINE)
    assert anchor in {heading.lower().replace(" ", "-").replace(":", "") for heading in headings}


def test_the_rules_that_promtool_tests_are_all_there_are() -> None:
    tests = (ROOT / "deploy/prometheus/rules.test.yml").read_text()
    names = [rule["alert"] for rule in ALERTS]
    assert len(set(names)) == len(names)
    assert {name for name in names if f'alertname="{name}"' not in tests} == set()


def test_grafana_s_own_model_knows_all_of_the_dashboard() -> None:
    assert unknown_to(modelled(DASHBOARD), DASHBOARD) == []
    wrong = {**DASHBOARD, "panels": [{**DASHBOARD["panels"][0], "colour": "red"}]}
    assert unknown_to(modelled(wrong), wrong) == ["panels.0.colour"]


def modelled(document: dict[str, Any]) -> Any:
    """Return what is left of a dashboard once Grafana's model has read it: that leaves out what it does not know."""
    return json.loads(JSONEncoder().encode(dashboard.Dashboard.from_json(document)))


def unknown_to(known: Any, value: Any) -> list[str]:
    """Return the paths of all parts of a JSON value that are missing or different in `known`."""
    if isinstance(value, dict):
        kept = known if isinstance(known, dict) else {}
        return [f"{key}.{path}".rstrip(".") for key, one in value.items() for path in unknown_to(kept.get(key), one)]
    if isinstance(value, list):
        parts_kept = known if isinstance(known, list) and len(known) == len(value) else [None] * len(value)
        return [f"{n}.{path}".rstrip(".") for n, one in enumerate(value) for path in unknown_to(parts_kept[n], one)]
    return [] if known == value else [""]


def test_the_dashboard_has_its_panels_side_by_side() -> None:
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, panel["title"]
        taken |= cells
    variables = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    assert variables == {"datasource", "cluster", "mirror"}
    for panel in PANELS:
        assert panel["title"]
        assert panel["description"]
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        references = [target["refId"] for target in panel["targets"]]
        assert len(set(references)) == len(references)
        assert panel["fieldConfig"]["defaults"]["noValue"] == "unknown", "what is not known is no 0"
        assert panel["fieldConfig"]["defaults"].get("custom", {}).get("spanNulls", False) is False
