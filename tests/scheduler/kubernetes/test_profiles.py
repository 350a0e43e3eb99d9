"""kube-scheduler's generated configuration, and schedulerNames that must not be served."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from contract import names
from scheduler.kubernetes.dialects import RESOURCES
from scheduler.kubernetes.profiles import (
    CONFIG_FILE,
    KOORDINATOR,
    NAMES,
    Profiles,
    ProfilesError,
    configuration,
    manifest,
    refuse_taken,
)

_BOTH = Profiles(NAMES)


def test_there_is_a_profile_for_each_name() -> None:
    assert [p["schedulerName"] for p in configuration(Profiles())["profiles"]] == [
        names.SCHEDULER_NAME
    ]
    assert [p["schedulerName"] for p in configuration(_BOTH)["profiles"]] == list(NAMES)


def test_every_node_is_asked_about() -> None:
    whole = configuration(_BOTH)
    assert {each["percentageOfNodesToScore"] for each in (whole, *whole["profiles"])} == {100}


def test_the_extender_is_asked_about_every_pod_by_names_and_never_passed_over() -> None:
    (extender,) = configuration(Profiles())["extenders"]
    assert extender["urlPrefix"] == "http://127.0.0.1:9444"
    assert (extender["nodeCacheCapable"], extender["ignorable"]) == (True, False)
    assert "managedResources" not in extender
    verbs = ("filter", "prioritize", "preempt", "bind")
    assert [extender[f"{verb}Verb"] for verb in verbs] == [*verbs]


def test_every_node_is_asked_about_before_pods_are_preempted() -> None:
    (profile,) = configuration(Profiles())["profiles"]
    (args,) = [e["args"] for e in profile["pluginConfig"] if e["name"] == "DefaultPreemption"]
    assert args == {"minCandidateNodesPercentage": 100}


def test_packing_outranks_stock_scores_and_what_the_pod_prefers_outranks_packing() -> None:
    """Its plugins give 0 to 100 points; it multiplies an extender's 0 to 10 by 10."""
    whole = configuration(Profiles())
    (profile,), (extender,) = whole["profiles"], whole["extenders"]
    weights = {each["name"]: each["weight"] for each in profile["plugins"]["multiPoint"]["enabled"]}
    assert weights.keys() == {
        *("NodeAffinity", "InterPodAffinity", "PodTopologySpread", "TaintToleration")
    }
    one_step, all_steps = 10 * extender["weight"], 100 * extender["weight"]
    assert one_step > 3 * 100
    assert all_steps < 100 * min(weights.values())


def test_nothing_is_spread_that_does_not_ask_for_it() -> None:
    (profile,) = configuration(Profiles())["profiles"]
    (args,) = [e["args"] for e in profile["pluginConfig"] if e["name"] == "PodTopologySpread"]
    assert args == {"defaultingType": "List", "defaultConstraints": []}


@pytest.mark.parametrize(("lease_s", "times"), [(15, "15s 10s 2s"), (4, "4s 2s 1s")])
def test_its_own_election(lease_s: int, times: str) -> None:
    election = configuration(Profiles(lease_s=lease_s))["leaderElection"]
    assert election["leaderElect"] is True
    assert f"{election['leaseDuration']} {election['renewDeadline']} {election['retryPeriod']}" == (
        times
    )
    assert election["resourceName"] != names.LEASE_SCHEDULER


def test_what_is_printed_is_read_back() -> None:
    config_map, policy, binding = yaml.safe_load_all(manifest(_BOTH))
    assert yaml.safe_load(config_map["data"][CONFIG_FILE]) == configuration(_BOTH)
    assert binding["spec"]["policyName"] == policy["metadata"]["name"]
    served = policy["spec"]["validations"][0]
    assert "['gpuslice-scheduler', 'koord-scheduler']" in served["expression"]
    assert "must be gpuslice-scheduler or koord-scheduler" in served["messageExpression"]
    assert "must be gpuslice-scheduler" in manifest(Profiles())


def test_a_share_is_asked_for_by_the_contracts_names_old_ones_too() -> None:
    _, policy, _ = yaml.safe_load_all(manifest(Profiles()))
    asks = policy["spec"]["matchConditions"][0]["expression"]
    old = (o for o, new in names.DEPRECATED_RESOURCES.items() if new in RESOURCES)
    assert set(re.findall(r"'(\w+\.\w+/[\w.-]+)'", asks)) == {*RESOURCES, *old}


@pytest.mark.parametrize(
    ("served", "lease_s", "text"),
    [
        (
            ("default-scheduler",),
            15,
            "'default-scheduler': must be one of gpuslice-scheduler, koord",
        ),
        ((names.SCHEDULER_NAME, "volcano"), 15, "'volcano': must be one of"),
        ((*NAMES, KOORDINATOR), 15, "must be unique names"),
        (NAMES, 2, "lease-s: invalid value 2: must be 3 or more"),
    ],
)
def test_what_cannot_be_served(served: tuple[str, ...], lease_s: int, text: str) -> None:
    with pytest.raises(ProfilesError) as caught:
        Profiles(served, lease_s=lease_s)
    assert text in str(caught.value)


def pod(image: str, phase: str = "Running", **labels: str) -> dict[str, Any]:
    return {
        "metadata": {"namespace": "koordinator-system", "name": "k-1", "labels": labels or None},
        "spec": {"containers": [{"image": "sidecar:1"}, {"image": image}]},
        "status": {"phase": phase},
    }


@pytest.mark.parametrize(
    "running",
    [
        pod("ghcr.io/koordinator-sh/koord-scheduler:v1.6.0"),
        pod("registry:5000/koord-scheduler@sha256:0123"),
        pod("koord-scheduler"),
        pod("mirror/renamed:1", "Pending", **{"koord-app": "koord-scheduler"}),
    ],
)
def test_a_name_whose_own_scheduler_runs_is_refused(running: dict[str, Any]) -> None:
    with pytest.raises(ProfilesError) as caught:
        refuse_taken(_BOTH, [pod("nginx"), running])
    assert str(caught.value) == (
        "schedulerName: invalid value 'koord-scheduler': must be served by one scheduler, and pod"
        " koordinator-system/k-1 runs its own; stop that pod, or omit --serve"
    )
    refuse_taken(Profiles(), [running])


def test_what_has_ended_and_what_has_another_name_runs_no_scheduler() -> None:
    ended = pod("koordinator-sh/koord-scheduler:v1.6.0", "Succeeded")
    other = pod("koordinator-sh/koord-manager:v1.6.0", **{"koord-app": "koord-manager"})
    refuse_taken(_BOTH, [ended, other, pod("k8s.io/kube-scheduler:v1.36.3"), {"metadata": {}}])
