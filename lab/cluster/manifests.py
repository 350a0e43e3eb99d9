"""The objects that install gpuslice, as the chart renders them."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, Final

import yaml

from gpuslice.contract import names
from tools import chart

Json = dict[str, Any]

CRDS: Final = chart.CHART / "crds"
CONFIG_MAP: Final = "gpuslice-kube-scheduler"
CONFIG_FILE: Final = "kube-scheduler.yaml"
"""The key of kube-scheduler's configuration in the ConfigMap."""
KOORDINATOR: Final = "koord-scheduler"
NAMES: Final = (names.SCHEDULER_NAME, KOORDINATOR)
"""The schedulerNames whose pods the chart can serve."""
STOCK: Final = "default-scheduler"
"""The schedulerName of pods that specify none."""
NAMES_POLICY: Final = "gpuslice-scheduler-names"
POLICY: Final = "ValidatingAdmissionPolicy"
BINDING: Final = "ValidatingAdmissionPolicyBinding"
_LEASE_S: Final = 15


def objects(*kinds: str) -> list[Json]:
    """Return the chart's objects of these kinds with default values; by default of all kinds."""
    return [copy.deepcopy(each) for each in _installed() if not kinds or each["kind"] in kinds]


def named(kind: str, name: str) -> Json:
    (only,) = (each for each in objects(kind) if each["metadata"]["name"] == name)
    return only


def serving(served: Sequence[str], *options: str) -> list[Json]:
    """Return the chart's objects for these schedulerNames, without hooks. Raises ChartError."""
    rendered = chart.render(f"--set=schedulerNames={{{','.join(served)}}}", "--no-hooks", *options)
    return [each for each in yaml.safe_load_all(rendered) if each]


def in_force(given: Iterable[Json]) -> list[Json]:
    """Return the objects with the action Deny in each policy's binding, as if the scheduler ran."""
    changed = copy.deepcopy(list(given))
    for each in changed:
        if names.LABEL_ADMISSION in each["metadata"].get("labels", {}):
            each["spec"]["validationActions"] = ["Deny"]
    return changed


def configuration(served: Sequence[str] = (names.SCHEDULER_NAME,), lease_s: int = _LEASE_S) -> Json:
    """Return kube-scheduler's configuration. lease_s: duration of its Lease."""
    found: Json = yaml.safe_load(named("ConfigMap", CONFIG_MAP)["data"][CONFIG_FILE])
    (profile,) = found["profiles"]
    found["profiles"] = [{**profile, "schedulerName": name} for name in served]
    if lease_s != _LEASE_S:
        times_s = {"leaseDuration": lease_s, "renewDeadline": lease_s * 2 // 3, "retryPeriod": 1}
        found["leaderElection"] |= {name: f"{value}s" for name, value in times_s.items()}
    return found


@cache
def _installed() -> list[Json]:
    return list(yaml.safe_load_all(chart.install()))
