"""What queries ask for, held against what servers tell."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import promql_parser
import yaml
from prometheus_client.parser import text_string_to_metric_families

OF_PROMETHEUS = {"job", "instance"}
"""Labels that every series gets when it is scraped."""
SYNTHETIC = {"up": OF_PROMETHEUS}
"""Series that Prometheus makes itself."""
_OF_CHANCE = {"code"}
"""Labels whose values are what went wrong; a query may ask for those that have not come up."""
_MATCHES = {
    "MatchOp.Equal": lambda value, wanted: value == wanted,
    "MatchOp.NotEqual": lambda value, wanted: value != wanted,
    "MatchOp.Re": lambda value, wanted: re.fullmatch(wanted, value) is not None,
    "MatchOp.NotRe": lambda value, wanted: re.fullmatch(wanted, value) is None,
}

Samples = Mapping[str, Sequence[Mapping[str, str]]]
"""Labels of all series by name."""


@dataclass(frozen=True)
class Query:
    """A query, and where it stands."""

    location: str
    expression: str
    legend: str = ""


def samples_of(*texts: str) -> dict[str, list[dict[str, str]]]:
    """Return the series of scraped texts."""
    found: dict[str, list[dict[str, str]]] = {}
    for text in texts:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                found.setdefault(sample.name, []).append(dict(sample.labels))
    return found


def queries_of_dashboard(path: Path) -> Iterator[Query]:
    """Yield the queries of panels and variables, with Grafana's own variables filled in."""
    dashboard = json.loads(path.read_text(encoding="utf-8"))
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            expression = re.sub(r"\$__rate_interval", "5m", target["expr"])
            expression = re.sub(r"\$\w+", ".*", expression)
            yield Query(f"panel '{panel['title']}'", expression, target["legendFormat"])
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            found = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["definition"])
            assert found is not None, variable["definition"]
            yield Query(f"variable '{variable['name']}'", f"sum by ({found[2]}) ({found[1]})")


def rules_of(path: Path) -> list[dict[str, Any]]:
    """Return all rules of a file."""
    return [rule for group in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"] for rule in group["rules"]]


def queries_of_rules(path: Path) -> Iterator[Query]:
    """Yield the queries of a file of rules."""
    for rule in rules_of(path):
        yield Query(f"rule '{rule.get('record') or rule['alert']}'", rule["expr"])


def problems(query: Query, samples: Samples, recorded: Collection[str]) -> list[str]:
    """Return what a query asks for that is not there.

    Args:
        query: the query.
        samples: what was scraped.
        recorded: names that recording rules define; their series have the label ``instance`` alone.
    """
    tree = promql_parser.parse(query.expression)
    selectors, found = _selectors(tree), []
    assert selectors, f"{query.location} asks for nothing"
    grouped = set(re.findall(r"{{\s*(\w+)\s*}}", query.legend))
    if "sum" not in query.expression:
        grouped -= set.intersection(*(_labels(each.name, samples, recorded) for each in selectors))
    for aggregate in _nodes(tree, promql_parser.AggregateExpr):
        if aggregate.modifier is not None:
            for selector in _selectors(aggregate.expr):
                missing = set(aggregate.modifier.labels) - _labels(selector.name, samples, recorded)
                found += [f"{query.location}: {selector.name} has no label {label}" for label in sorted(missing)]
            grouped.difference_update(aggregate.modifier.labels)
    for selector in selectors:
        found += _problems_of(selector, query.location, samples, recorded)
    return found + [f"{query.location}: the legend names {label}, which no series has" for label in sorted(grouped)]


def _nodes(tree: Any, kind: type) -> list[Any]:
    found: list[Any] = []

    def visit(node: Any) -> bool:
        if isinstance(node, kind):
            found.append(node)
        return True

    promql_parser.walk(tree, visit)
    return found


def _selectors(tree: Any) -> list[Any]:
    of_ranges = [node.vector_selector for node in _nodes(tree, promql_parser.MatrixSelector)]
    return list({id(each): each for each in _nodes(tree, promql_parser.VectorSelector) + of_ranges}.values())


def _labels(name: str, samples: Samples, recorded: Collection[str]) -> set[str]:
    if name in SYNTHETIC or name in recorded:
        return SYNTHETIC.get(name, {"instance"})
    return OF_PROMETHEUS.union(*samples.get(name, ()))


def _problems_of(selector: Any, location: str, samples: Samples, recorded: Collection[str]) -> list[str]:
    name = selector.name
    if name not in samples and name not in recorded and name not in SYNTHETIC:
        return [f"{location}: there is no metric {name}"]
    found = []
    labels = _labels(name, samples, recorded)
    for matcher in selector.matchers.matchers:
        if matcher.name not in labels:
            found.append(f"{location}: {name} has no label {matcher.name}")
        elif matcher.name not in OF_PROMETHEUS | _OF_CHANCE:
            matches = _MATCHES[str(matcher.op)]
            if not any(matches(series.get(matcher.name, ""), matcher.value) for series in samples[name]):
                found.append(f"{location}: no series of {name} has such a {matcher.name}: {matcher.value}")
    return found
