"""Render the chart with a test's values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml

from tools import chart

Json = dict[str, Any]

EVERYTHING: Final = Path(__file__).with_name("everything.yaml")
"""Values that turn on every optional part."""


def objects(values: Json | None = None, *options: str) -> list[Json]:
    """Return the objects of an installation with these values, without Helm's hooks."""
    return with_hooks(f"--set-json={json.dumps(values or {})}", "--no-hooks", *options)


def everything(*options: str) -> list[Json]:
    return objects({}, f"--values={EVERYTHING}", *options)


def with_hooks(*options: str) -> list[Json]:
    text = _rendered(*options)
    return [each for each in yaml.load_all(text, Loader=yaml.CSafeLoader) if each]


@cache
def _rendered(*options: str) -> str:
    return chart.render(*options)


def keys(rendered: list[Json]) -> set[tuple[str, str]]:
    return {(each["kind"], each["metadata"]["name"]) for each in rendered}


def one(rendered: list[Json], kind: str, name: str) -> Json:
    (only,) = (e for e in rendered if (e["kind"], e["metadata"]["name"]) == (kind, name))
    return only


def pod(rendered: list[Json], kind: str, name: str) -> Json:
    spec: Json = one(rendered, kind, name)["spec"]["template"]["spec"]
    return spec


def command(rendered: list[Json], kind: str, name: str, container: int = 0) -> list[str]:
    words: list[str] = pod(rendered, kind, name)["containers"][container]["command"]
    return words


def runs_on(pod: Json, labels: Mapping[str, str]) -> bool:
    """Return whether a pod may run on a node with these labels, as kube-scheduler decides it."""
    if not pod.get("nodeSelector", {}).items() <= labels.items():
        return False
    nodes = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    terms = (term["matchExpressions"] for term in nodes["nodeSelectorTerms"])
    return any(all(_matches(each, labels) for each in term) for term in terms)


def _matches(expression: Json, labels: Mapping[str, str]) -> bool:
    value, values = labels.get(expression["key"]), expression.get("values", [])
    match expression["operator"]:
        case "Exists":
            return value is not None
        case "In":
            return value in values
        case "NotIn":
            return value not in values
    raise AssertionError(expression)
