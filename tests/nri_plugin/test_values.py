"""Values pass between threads and decisions, so a dataclass is frozen unless it is listed here."""

from __future__ import annotations

import nri_plugin
from nri_plugin.policy.checks import Request
from tests.support import dataclasses_of

_CHANGING = (
    "Answers ArbiterProcess Child Contexts Copy DevicePlugin Endpoint Generator Judge Measuring "
    "NvmlProcess Observer Process Store _Mounts _Sample"
)


def test_values_are_frozen() -> None:
    found = dataclasses_of(nri_plugin)
    changing = [each for each in found if not each.__dataclass_params__.frozen]
    assert {each.__name__ for each in changing} == {*_CHANGING.split()}
    # A request keeps its computed properties.
    without_slots = [each for each in found if "__slots__" not in vars(each)]
    assert {*without_slots} == {*changing, Request}
