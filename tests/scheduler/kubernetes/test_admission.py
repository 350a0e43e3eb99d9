"""Which bindings are changed from warning to refusing."""

from __future__ import annotations

from typing import Any, Final

import pytest

from gpuslice.contract import names
from scheduler.kubernetes.admission import denial

AUTO: Final = {names.LABEL_ADMISSION: names.ADMISSION_AUTO}


def binding(labels: object, actions: object) -> dict[str, Any]:
    metadata = {"name": "gpuslice-requests", "resourceVersion": "7", "labels": labels}
    return {"metadata": metadata, "spec": {"validationActions": actions}}


@pytest.mark.parametrize("action", ["Audit", "Warn"])
def test_one_that_refuses_nothing_is_changed_by_its_version(action: str) -> None:
    assert denial(binding(AUTO, [action])) == {
        "metadata": {"resourceVersion": "7"},
        "spec": {"validationActions": ["Deny"]},
    }


LEFT: Final[dict[str, tuple[object, object]]] = {
    "no label": (None, ["Warn"]),
    "another label": ({names.LABEL_PART_OF: names.PART_OF}, ["Warn"]),
    "another value": ({names.LABEL_ADMISSION: "off"}, ["Warn"]),
    "refuses already": (AUTO, ["Deny"]),
    "on trial": (AUTO, ["Warn", "Audit"]),
    "re-applied beside the scheduler's own": (AUTO, ["Audit", "Deny"]),
    "no actions": (AUTO, None),
}


@pytest.mark.parametrize("case", LEFT)
def test_an_operators_choice_is_left(case: str) -> None:
    assert denial(binding(*LEFT[case])) is None
