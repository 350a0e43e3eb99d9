"""The objects have only fields of the oldest Kubernetes, by its published OpenAPI schema.

No control plane of that version is built: the schema shows fields, their types and which are
required, and not what CEL expressions may use.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.chart.rendering import EVERYTHING
from tools import chart
from tools.building import build, cache_dir

pytestmark = pytest.mark.cluster

Json = dict[str, Any]

_VERSION: Final = "1.30.14"
_FOREIGN: Final = ("monitoring.coreos.com/v1", "kai.scheduler/v1")
_TYPES: Final[dict[str, type]] = {
    "string": str,
    "boolean": bool,
    "integer": int,
    "number": float,
    "object": dict,
    "array": list,
}


@pytest.fixture(scope="module")
def definitions() -> Json:
    final = cache_dir() / "bin" / f"openapi-{_VERSION}"
    if not final.exists():
        module = f"k8s.io/kubernetes@v{_VERSION}"
        with build(final, f"fetching the schema of Kubernetes {_VERSION}", 10**9, os.environ) as go:
            go.go("mod", "init", "gpuslice.io/lab")
            fetched = json.loads(go.output("mod", "download", "-json", module))
            swagger = Path(fetched["Dir"]) / "api/openapi-spec/swagger.json"
            (go.into / swagger.name).write_bytes(swagger.read_bytes())
    read: Json = json.loads((final / "swagger.json").read_text())["definitions"]
    return read


def _faults(definitions: Json, schema: Json, value: Any, path: str) -> Iterator[str]:
    while "$ref" in schema:
        schema = definitions[schema["$ref"].removeprefix("#/definitions/")]
    if schema.get("format") == "int-or-string":
        if not isinstance(value, int | str):
            yield f"{path}: {value!r}: must be an integer or a string"
        return
    kind = schema.get("type")
    if kind and (not isinstance(value, _TYPES[kind]) or (kind == "integer" and value is True)):
        yield f"{path}: {value!r}: must be of type {kind}"
        return
    if kind == "array":
        for number, each in enumerate(value):
            yield from _faults(definitions, schema["items"], each, f"{path}[{number}]")
    if kind == "object" or "properties" in schema:
        known = schema.get("properties", {})
        yield from (
            f"{path}.{key}: required" for key in schema.get("required", ()) if key not in value
        )
        for key, each in value.items():
            below = known.get(key, schema.get("additionalProperties"))
            if below is None:
                if known:
                    yield f"{path}.{key}: unknown field"
            else:
                yield from _faults(definitions, below, each, f"{path}.{key}")


def _kind(definitions: Json, each: Json) -> Json:
    group, _, version = each["apiVersion"].rpartition("/")
    wanted = {"group": group, "version": version, "kind": each["kind"]}
    key = "x-kubernetes-group-version-kind"
    found: list[Json] = [d for d in definitions.values() if d.get(key) == [wanted]]
    assert found, f"Kubernetes {_VERSION} has no {each['apiVersion']} {each['kind']}"
    return found[0]


@pytest.mark.parametrize("options", [[], [f"--values={EVERYTHING}"]], ids=["default", "everything"])
def test_every_field_is_in_the_schema_of_the_oldest_kubernetes(
    definitions: Json, options: list[str]
) -> None:
    text = chart.render("--include-crds", f"--kube-version={_VERSION}", *options)
    rendered = [each for each in yaml.safe_load_all(text) if each]
    checked = [each for each in rendered if each["apiVersion"] not in _FOREIGN]
    found = [
        fault
        for each in checked
        for fault in _faults(definitions, _kind(definitions, each), each, each["kind"])
    ]
    assert len(checked) > 30 and found == []


def test_an_unknown_field_would_be_found(definitions: Json) -> None:
    container = {"name": 1, "image": "a", "restartPolicyRules": []}
    pod = {"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [container], "tolerations": 1}}
    assert list(_faults(definitions, _kind(definitions, pod), pod, "Pod")) == [
        "Pod.spec.containers[0].name: 1: must be of type string",
        "Pod.spec.containers[0].restartPolicyRules: unknown field",
        "Pod.spec.tolerations: 1: must be of type array",
    ]
