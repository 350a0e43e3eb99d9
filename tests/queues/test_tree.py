"""Queues as a tree: which are served, and why the others are not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from scheduler.queues import tree
from tests.queues.kai import Q

SEED = Path(__file__).parents[1] / "dialects" / "recorded" / "kai-queues.yaml"


def queue(**spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "a"}, "spec": spec}


def test_the_seeds_queues_are_served_without_a_remark() -> None:
    built = tree.build(yaml.safe_load_all(SEED.read_text()))
    assert [each.name for each in built[""].tree()] == ["default", "test"]
    assert [each.name for each in built["test"].path()] == ["test", "default", ""]
    assert [name for name, each in built.items() if each.is_leaf] == ["test"]
    assert not any(each.notes or each.fault for each in built.values())


def test_absent_fields_are_as_in_kai() -> None:
    read = tree.read(queue())
    assert (read.parent, read.quota, read.limit, read.weight, read.priority) == ("", 0, 0, 0, 100)


def test_amounts_are_thousandths() -> None:
    gpu = {"quota": 0.3, "limit": 1.2345, "overQuotaWeight": 0.5}
    read = tree.read(queue(priority=7, resources={"gpu": gpu}))
    assert (read.quota, read.limit, read.weight, read.priority) == (300, 1234, 0.5, 7)


@pytest.mark.parametrize(
    ("field", "value", "must"),
    [
        ("quota", -2, "-1, or a number from 0 to 999999999"),
        ("limit", -0.5, "-1, or a number from 0 to 999999999"),
        ("overQuotaWeight", -1, "a number from 0 to 999999999"),
        ("quota", float("nan"), "-1, or a number from 0 to 999999999"),
        ("limit", 1e12, "-1, or a number from 0 to 999999999"),
        ("quota", "4", "-1, or a number from 0 to 999999999"),
        ("quota", True, "-1, or a number from 0 to 999999999"),
    ],
)
def test_an_invalid_amount_is_named(field: str, value: Any, must: str) -> None:
    built = tree.build([queue(resources={"gpu": {"limit": -1, field: value}})])
    message = f"spec.resources.gpu.{field}: invalid value {value}: must be {must}"
    assert built["a"].fault == tree.Finding("InvalidSpec", message)
    assert not built[""].below


@pytest.mark.parametrize(
    ("queues", "faults"),
    [
        (
            [Q("a", parent="b"), Q("b", parent="a"), Q("c", parent="a"), Q("d")],
            {
                "a": ("ParentNotServed", "spec.parentQueue: invalid value b: must be a Queue that"),
                "b": ("ParentNotServed", "in no cycle: b > a > b"),
                "c": ("ParentNotServed", "in no cycle: c > a > b > a"),
            },
        ),
        ([Q("a", parent="a")], {"a": ("ParentNotServed", "a > a")}),
        (
            [Q("a", parent="gone"), Q("b", parent="a")],
            {
                "a": ("ParentMissing", "spec.parentQueue: invalid value gone: must be the name"),
                "b": ("ParentNotServed", "b > a > gone"),
            },
        ),
        (
            [Q("a", quota=-7), Q("b", parent="a")],
            {"a": ("InvalidSpec", "gpu.quota"), "b": ("ParentNotServed", "invalid value a")},
        ),
        (
            [Q(tree.ROOT), Q("b", parent=tree.ROOT)],
            {
                tree.ROOT: ("InvalidSpec", "metadata.name"),
                "b": ("ParentNotServed", "invalid value gpus"),
            },
        ),
    ],
)
def test_a_queue_below_a_fault_is_not_served(
    queues: list[Q], faults: dict[str, tuple[str, str]]
) -> None:
    built = tree.build(each.raw() for each in queues)
    found = {name: each.fault for name, each in built.items() if each.fault}
    assert found.keys() == faults.keys()
    for name, (reason, part) in faults.items():
        assert found[name].reason == reason
        assert part in found[name].message
    served = {each.name for each in built[""].tree()}
    assert served == {each.name for each in queues} - {*faults}


def test_what_has_no_effect_is_said() -> None:
    every = {"quota": -1, "limit": -1}
    written = queue(
        preemptMinRuntime="5m", resources={"gpu": every, "cpu": {"quota": 4, "limit": -1}}
    )
    notes = tree.read(written).notes
    assert [each.reason for each in notes] == ["GPUsOnly", "GPUsOnly", "NotTranslated"]
    assert [each.message.split(":")[0] for each in notes] == [
        *("spec.resources.cpu", "spec.resources.memory", "spec.preemptMinRuntime")
    ]
    assert tree.read(queue()).notes[0].reason == "NothingAllowed"
