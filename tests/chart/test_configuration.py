"""kube-scheduler's configuration, and the policy of the schedulerNames that it serves."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

import pytest
import yaml

from gpuslice.contract import names
from gpuslice.contract.dialects import DIALECTS, HAMI_GPU
from lab.cluster.manifests import CONFIG_FILE, CONFIG_MAP, NAMES_POLICY, POLICY
from scheduler.dialects.koordinator import RESOURCES
from tests.chart.rendering import objects, one

pytestmark = pytest.mark.cluster

OURS: Final = (names.SCHEDULER_NAME,)
Json = dict[str, Any]


def rendered(kind: str, name: str, served: Sequence[str] = OURS, *options: str) -> Json:
    return one(objects({"schedulerNames": list(served)}, *options), kind, name)


def configuration(served: Sequence[str] = OURS, *options: str) -> Json:
    config_map = rendered("ConfigMap", CONFIG_MAP, served, *options)
    written: Json = yaml.safe_load(config_map["data"][CONFIG_FILE])
    return written


def ignored(*options: str) -> Sequence[set[str]]:
    """Return the resources that NodeResourcesFit ignores, by profile."""
    return [
        set(plugin["args"]["ignoredResources"])
        for profile in configuration(OURS, *options)["profiles"]
        for plugin in profile["pluginConfig"]
        if plugin["name"] == "NodeResourcesFit"
    ]


def test_resources_of_other_dialects_are_left_to_the_extender() -> None:
    """Which refuses those of a dialect that is off. Device plugins offer nvidia.com/gpu, unless
    HAMi's dialect is on."""
    others = {name for each in DIALECTS if each.switch for name in each.resources}
    assert others > {HAMI_GPU} and not others & RESOURCES
    assert ignored() == [others - {HAMI_GPU}]
    assert ignored("--set=dialects.volcano.enabled=true") == [others - {HAMI_GPU}] * 2
    assert ignored("--set=dialects.hami.enabled=true") == [others]


def test_the_extender_is_required_for_every_pod_and_gets_node_names() -> None:
    (extender,) = configuration()["extenders"]
    assert extender["urlPrefix"] == "http://127.0.0.1:9444"
    assert (extender["nodeCacheCapable"], extender["ignorable"]) == (True, False)
    assert "managedResources" not in extender
    verbs = ("filter", "prioritize", "preempt", "bind")
    assert [extender[f"{verb}Verb"] for verb in verbs] == [*verbs]


def test_every_node_is_a_candidate_for_preemption() -> None:
    (profile,) = configuration()["profiles"]
    (args,) = [e["args"] for e in profile["pluginConfig"] if e["name"] == "DefaultPreemption"]
    assert args == {"minCandidateNodesPercentage": 100}


def test_packing_outranks_stock_scores_and_what_the_pod_prefers_outranks_packing() -> None:
    """Its plugins give 0 to 100 points; it multiplies an extender's 0 to 10 by 10."""
    whole = configuration()
    (profile,), (extender,) = whole["profiles"], whole["extenders"]
    weights = {each["name"]: each["weight"] for each in profile["plugins"]["multiPoint"]["enabled"]}
    assert weights.keys() == {
        *("NodeAffinity", "InterPodAffinity", "PodTopologySpread", "TaintToleration")
    }
    one_step, all_steps = 10 * extender["weight"], 100 * extender["weight"]
    assert one_step > 3 * 100
    assert all_steps < 100 * min(weights.values())


@pytest.mark.parametrize(("lease_s", "times"), [(15, "15s 10s 1s"), (4, "4s 2s 1s")])
def test_kube_scheduler_has_a_leader_election_of_its_own(lease_s: int, times: str) -> None:
    election = configuration(OURS, f"--set=scheduler.leaseDurationSeconds={lease_s}")[
        "leaderElection"
    ]
    assert election["leaderElect"] is True
    assert f"{election['leaseDuration']} {election['renewDeadline']} {election['retryPeriod']}" == (
        times
    )
    assert election["resourceName"] == names.LEASE_KUBE_SCHEDULER


def test_a_share_is_requested_by_the_contracts_names_and_deprecated_ones() -> None:
    asks = rendered(POLICY, NAMES_POLICY)["spec"]["matchConditions"][0]["expression"]
    old = (o for o, new in names.DEPRECATED_RESOURCES.items() if new in RESOURCES)
    assert set(re.findall(r"'(\w+\.\w+/[\w.-]+)'", asks)) == {*RESOURCES, *old}
