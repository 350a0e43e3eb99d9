"""Every refusal in docs/requests.md occurs, with the documented message."""

from __future__ import annotations

import re
from typing import Any, Final

import pytest

from gpuslice.contract import names
from tests.cluster.admission.judging import tried
from tests.cluster.admission.test_allocations import ALLOCATION
from tests.cluster.admission.test_placement import DENIED
from tests.cluster.installing import policies
from tests.cluster.server import Server
from tests.requests.pods import asking, pod
from tests.support import ROOT, table_below

_TEXT: Final = (ROOT / "docs" / "requests.md").read_text()
_SUBRESOURCES: Final = {
    "pods": "pods",
    "pods/*": "every subresource of theirs",
    "bindings": "Bindings",
    "pods/ephemeralcontainers": "ephemeral containers",
    "deployments": "templates",
    "nodes": "Nodes",
    "leases": "Leases",
    "devices": "Devices",
}


def code(cell: str) -> list[str]:
    return re.findall(r"`([^`]*)`", cell)


def test_each_policy_has_its_row_and_its_resources() -> None:
    table = table_below(_TEXT, "policy | refuses | in")
    rows = {code(name)[0]: where for name, _, where in table}
    assert set(rows) == set(policies())
    for name, where in rows.items():
        rules = policies()[name]["matchConstraints"]["resourceRules"]
        matched = {resource for rule in rules for resource in rule["resources"]}
        listed = {resource for resource, words in _SUBRESOURCES.items() if words in where}
        assert listed == matched & set(_SUBRESOURCES), name


def test_the_allocations_annotations() -> None:
    listed = {code(cell)[0] for cell, _ in table_below(_TEXT, "annotation | says")}
    written = {key.partition("/")[0] if "required" in key else key for key in ALLOCATION}
    assert listed == written
    assert names.ANNOTATION_REQUIRED_PLUGINS in listed


def test_the_document_lists_the_denied_variables() -> None:
    rows = table_below(_TEXT, "variable | because")
    listed = {name for cell, _ in rows for name in code(cell)}
    denied = {re.sub(r"_\d+$", "_N", name) for name in DENIED}
    assert listed - {"void", "none"} == denied


_REQUESTS: Final = table_below(_TEXT, "request | refusal")


@pytest.mark.cluster
@pytest.mark.parametrize("row", _REQUESTS, ids=lambda row: row[0])
def test_a_refusal_has_the_documented_message(server: Server, row: list[str]) -> None:
    asked: dict[str, Any] = dict(each.split(": ") for each in code(row[0]))
    assert [tried(server, pod(asking(asked))).text] == code(row[1])
    assert len(_REQUESTS) > 5
