"""kube-scheduler's configuration, and the admission policy of the schedulerNames that it serves."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest
import yaml

from gpuslice.contract import names
from gpuslice.contract.dialects import DIALECTS, HAMI_GPU
from lab.cluster.manifests import CONFIG_FILE, CONFIG_MAP, NAMES_POLICY, POLICY
from scheduler.dialects.koordinator import RESOURCES
from tests.chart.rendering import Json, objects, one

pytestmark = pytest.mark.cluster


def configuration(*options: str) -> Json:
    config_map = one(objects({}, *options), "ConfigMap", CONFIG_MAP)
    written: Json = yaml.safe_load(config_map["data"][CONFIG_FILE])
    return written


def arguments(plugin: str, *options: str) -> Sequence[Json]:
    """Return the arguments of this kube-scheduler plugin in each profile."""
    return [
        each["args"]
        for profile in configuration(*options)["profiles"]
        for each in profile["pluginConfig"]
        if each["name"] == plugin
    ]


def test_resources_of_other_dialects_are_left_to_the_extender() -> None:
    """The extender refuses resources of a dialect that is off. While HAMi's dialect is off, device
    plugins may offer nvidia.com/gpu. Therefore kube-scheduler itself counts nvidia.com/gpu then."""

    def ignored(*options: str) -> list[set[str]]:
        found = arguments("NodeResourcesFit", *options)
        return [set(each["ignoredResources"]) for each in found]

    others = {name for each in DIALECTS if each.switch for name in each.resources}
    assert others > {HAMI_GPU} and not others & RESOURCES
    others.add(names.RESOURCE_MILLI)
    assert ignored() == [others - {HAMI_GPU}]
    assert ignored("--set=dialects.volcano.enabled=true") == [others - {HAMI_GPU}] * 2
    assert ignored("--set=dialects.hami.enabled=true") == [others] * 2


def test_the_extender_is_required_for_every_pod_and_gets_node_names() -> None:
    (extender,) = configuration()["extenders"]
    assert extender["urlPrefix"] == "http://127.0.0.1:9444"
    assert (extender["nodeCacheCapable"], extender["ignorable"]) == (True, False)
    assert "managedResources" not in extender
    verbs = ("filter", "prioritize", "preempt", "bind")
    assert [extender[f"{verb}Verb"] for verb in verbs] == [*verbs]


def test_every_node_is_a_candidate_for_preemption() -> None:
    assert arguments("DefaultPreemption") == [{"minCandidateNodesPercentage": 100}]


@pytest.mark.parametrize(("version", "most_s"), [("v1.32.9", 10), ("v1.33.0-gke.1", 60)])
def test_the_backoff_is_long_only_where_an_idle_kube_scheduler_ends_it(
    version: str, most_s: int
) -> None:
    assert configuration(f"--kube-version={version}")["podMaxBackoffSeconds"] == most_s


def test_packing_outranks_stock_scores_and_what_the_pod_prefers_outranks_packing() -> None:
    """Plugins score 0 to 100. kube-scheduler multiplies an extender's score of 0 to 10 by 10."""
    whole = configuration()
    (profile,), (extender,) = whole["profiles"], whole["extenders"]
    weights = {each["name"]: each["weight"] for each in profile["plugins"]["multiPoint"]["enabled"]}
    preferred = ("NodeAffinity", "InterPodAffinity", "PodTopologySpread", "TaintToleration")
    assert weights.keys() == {*preferred}
    one_step, all_steps = 10 * extender["weight"], 100 * extender["weight"]
    assert one_step > 3 * 100
    assert all_steps < 100 * min(weights.values())


@pytest.mark.parametrize(("lease_s", "times"), [(15, "15s 10s 1s"), (4, "4s 2s 1s")])
def test_kube_scheduler_has_a_leader_election_of_its_own(lease_s: int, times: str) -> None:
    option = f"--set=scheduler.leaseDurationSeconds={lease_s}"
    election = configuration(option)["leaderElection"]
    assert election["leaderElect"] is True
    keys = ("leaseDuration", "renewDeadline", "retryPeriod")
    assert " ".join(election[key] for key in keys) == times
    assert election["resourceName"] == names.LEASE_KUBE_SCHEDULER


def test_a_share_is_requested_by_the_contracts_names_and_deprecated_ones() -> None:
    asks = one(objects(), POLICY, NAMES_POLICY)["spec"]["matchConditions"][0]["expression"]
    old = (o for o, new in names.DEPRECATED_RESOURCES.items() if new in RESOURCES)
    assert set(re.findall(r"'(\w+\.\w+/[\w.-]+)'", asks)) == {*RESOURCES, *old}
