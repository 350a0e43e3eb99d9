"""Volcano's ConfigMap as its watch reports it: which resources are on, and what is logged."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from scheduler.dialects.volcano_conf import ALL, NUMBER, SHARING
from scheduler.volcano_configuration import VolcanoConfiguration
from tests.scheduler.dialects.test_volcano_conf import GUIDE


def config_map(text: str | None, uid: str = "u-1") -> dict[str, Any]:
    data = {} if text is None else {"volcano-scheduler.conf": text}
    return {"metadata": {"name": "volcano-scheduler-configmap", "uid": uid}, "data": data}


@pytest.fixture
def on() -> list[frozenset[str]]:
    return []


@pytest.fixture
def watched(on: list[frozenset[str]]) -> VolcanoConfiguration:
    made = VolcanoConfiguration()
    made.connect(on.append)
    return made


def test_without_the_config_map_everything_is_on(
    watched: VolcanoConfiguration, on: list[frozenset[str]]
) -> None:
    watched.listed(set())
    watched.observed(config_map(GUIDE))
    watched.deleted(config_map(GUIDE))
    watched.listed(set())
    assert on == [ALL, {SHARING}, ALL]


def test_a_config_map_that_turns_nothing_on(
    watched: VolcanoConfiguration, on: list[frozenset[str]]
) -> None:
    watched.observed(config_map(None))
    watched.listed({"volcano-scheduler-configmap"})
    assert on == [ALL, frozenset()]


def test_an_unreadable_config_map_leaves_the_previous_in_force(
    watched: VolcanoConfiguration, on: list[frozenset[str]]
) -> None:
    watched.observed(config_map("["))
    assert "volcano-scheduler.conf: must be YAML" in watched.conf.problems[0]
    watched.observed(config_map(GUIDE))
    assert not watched.conf.problems
    watched.observed(config_map("tiers: 1"))
    assert watched.conf.problems == (
        "volcano-scheduler.conf: must be an object with a list of tiers",
    )
    watched.observed(config_map(GUIDE.replace("GPUSharingEnable", "GPUNumberEnable")))
    assert on == [ALL, frozenset(), {SHARING}, {SHARING}, {NUMBER}]


def test_ignored_settings_are_logged_once(
    watched: VolcanoConfiguration, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        watched.observed(config_map(GUIDE))
        watched.observed(config_map(GUIDE))
    (line,) = [record.getMessage() for record in caplog.records]
    assert "on=predicate.GPUSharingEnable" in line
    assert "actions, plugin binpack, plugin conformance, plugin drf" in line
