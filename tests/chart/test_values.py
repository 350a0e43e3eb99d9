"""Values that the chart refuses, and the effect of each value."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest
import yaml

from gpuslice.contract.dialects import DIALECTS
from tests.chart.rendering import EVERYTHING, command, keys, objects, one
from tools import chart

pytestmark = pytest.mark.cluster

Json = dict[str, Any]

_HAMI: Final[Json] = {"dialects": {"hami": {"enabled": True}}}
_POOL: Final[Json] = {"name": "a", "agent": {"nodeSelector": {"a": "b"}}}
REFUSED: Final[dict[str, tuple[Json, str]]] = {
    "unknown": (
        {"agent": {"strickt": True}},
        "at '/agent': additional properties 'strickt' not allowed",
    ),
    "type": (
        {"scheduler": {"enabled": "yes"}},
        "at '/scheduler/enabled': got string, want boolean",
    ),
    "zero": ({"scheduler": {"replicas": 0}}, "at '/scheduler/replicas': minimum: got 0, want 1"),
    "scheduler_name": (
        {"schedulerNames": ["gpuslice-scheduler", "volcano"]},
        "at '/schedulerNames/1': value must be one of 'gpuslice-scheduler', 'koord-scheduler'",
    ),
    "without_our_name": (
        {"schedulerNames": ["koord-scheduler"]},
        "at '/schedulerNames': no items match contains schema",
    ),
    "action": (
        {"admission": {"action": "Audit"}},
        "at '/admission/action': value must be one of 'Auto', 'Warn', 'Deny'",
    ),
    "relative_path": (
        {"driver": {"root": "run/nvidia/driver"}},
        "at '/driver/root': 'run/nvidia/driver' does not match pattern",
    ),
    "digest": (
        {"images": {"agent": {"digest": "latest"}}},
        "at '/images/agent/digest': 'latest' does not match pattern",
    ),
    "quantity": (
        {"agent": {"resources": {"limits": {"memory": "1 GB"}}}},
        "at '/agent/resources/limits/memory': '1 GB' does not match pattern",
    ),
    "pool_without_selector": (
        {"agent": {"nodePools": [{"name": "a", "agent": {}}]}},
        "at '/agent/nodePools/0/agent': missing property 'nodeSelector'",
    ),
    "metrics_that_prometheus_cannot_read": (
        {"monitoring": {"podMonitor": {"enabled": True}}},
        "agent.http.address: invalid value 127.0.0.1: must be reachable by Prometheus",
    ),
    "hami_beside_a_device_plugin": (
        {**_HAMI, "wholeGpus": "any"},
        "wholeGpus: invalid value any: must be off while dialects.hami.enabled is true",
    ),
    "hami_beside_a_pools_device_plugin": (
        {**_HAMI, "agent": {"nodePools": [{**_POOL, "wholeGpus": "6,7"}]}},
        "wholeGpus: invalid value 6,7: must be off while dialects.hami.enabled is true",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_wrong_value_is_refused_with_the_field(case: str) -> None:
    values, text = REFUSED[case]
    with pytest.raises(chart.ChartError) as caught:
        objects(values)
    assert text in str(caught.value)


def test_another_namespace_is_refused() -> None:
    with pytest.raises(chart.ChartError) as caught:
        objects({}, "--namespace=default")
    assert "namespace: invalid value default: must be gpuslice-system" in str(caught.value)


def test_every_value_has_a_schema_and_every_property_a_value() -> None:
    """The values of a pool, and of the elements of lists, are exempt."""
    schema = json.loads((chart.CHART / "values.schema.json").read_text())
    values = yaml.safe_load((chart.CHART / "values.yaml").read_text())
    assert _differences(schema, schema, values) == []


def _differences(root: Json, schema: Json, values: Any, path: str = "") -> list[str]:
    while "$ref" in schema:
        schema = root["$defs"][schema["$ref"].rpartition("/")[2]]
    if "properties" not in schema:
        return []
    known, given = schema["properties"], dict(values)
    optional = {"claims"}
    found = [f"{path}/{key}" for key in set(known) ^ set(given) if key not in optional]
    for key in set(known) & set(given):
        found += _differences(root, known[key], given[key], f"{path}/{key}")
    return found


# --- what values do


@pytest.mark.parametrize(
    ("version", "tag"),
    [
        ("v1.31.4-gke.1183000", "v1.31.4"),
        ("v1.30.2+k3s1", "v1.30.2"),
        ("v1.36.3", "v1.36.3"),
        ("v1.32.1-eks-5a6b7c8", "v1.32.1"),
    ],
)
def test_kube_scheduler_is_of_the_clusters_version(version: str, tag: str) -> None:
    rendered = objects({}, f"--kube-version={version}")
    pod = one(rendered, "Deployment", "gpuslice-scheduler")["spec"]["template"]["spec"]
    assert pod["containers"][0]["image"] == f"registry.k8s.io/kube-scheduler:{tag}"
    has_quota = ("ResourceQuota", "gpuslice-critical-pods") in keys(rendered)
    assert has_quota == ("gke" in version)


def test_an_older_cluster_is_refused() -> None:
    with pytest.raises(chart.ChartError, match="is incompatible with Kubernetes v1"):
        objects({}, "--kube-version=v1.29.9")


def test_images_come_from_the_registry_of_the_values() -> None:
    rendered = objects({}, f"--values={EVERYTHING}")
    images = {
        container["image"]
        for each in rendered
        if each["kind"] in ("DaemonSet", "Deployment")
        for key in ("initContainers", "containers")
        for container in each["spec"]["template"]["spec"].get(key, ())
    }
    assert images == {
        f"registry.example/team/gpuslice-agent@sha256:{'0' * 64}",
        "registry.example/team/gpuslice-scheduler:0.1.1",
        "registry.k8s.io/kube-scheduler:v1.36.3",
    }


def test_a_changed_configuration_restarts_the_scheduler() -> None:
    both = [{}, {"schedulerNames": ["gpuslice-scheduler", "koord-scheduler"]}]
    sums = {
        one(objects(values), "Deployment", "gpuslice-scheduler")["spec"]["template"]["metadata"][
            "annotations"
        ]["checksum/configuration"]
        for values in both
    }
    assert len(sums) == 2


SWITCHES: Final[dict[str, Json]] = {
    "kai": {"global": {"gpuSharing": True}},
    "volcano": {"dialects": {"volcano": {"enabled": True}}},
    "hami": {"dialects": {"hami": {"enabled": True}}},
}


@pytest.mark.parametrize("name", SWITCHES)
def test_a_dialect_that_is_on_is_served(name: str) -> None:
    """It is served under its schedulerName, beside Koordinator's dialect. HAMi's pods name no
    scheduler."""
    (dialect,) = (each for each in DIALECTS if each.name == name)
    rendered = objects(SWITCHES[name])
    config = one(rendered, "ConfigMap", "gpuslice-kube-scheduler")["data"]["kube-scheduler.yaml"]
    served = {each["schedulerName"] for each in yaml.safe_load(config)["profiles"]}
    assert served == {"gpuslice-scheduler", dialect.scheduler_name} - {""}
    option = f"--dialects=koordinator,{name}"
    assert option in command(rendered, "Deployment", "gpuslice-scheduler", 1)
    assert option in command(rendered, "DaemonSet", "gpuslice-agent")
    for policy in ("allocations", "dialects", "environment", "requests", "scheduler-names"):
        text = json.dumps(one(rendered, "ValidatingAdmissionPolicy", f"gpuslice-{policy}"))
        assert all(f"'{each}'" in text for each in served)


@pytest.mark.parametrize(("action", "suffix"), [("Deny", ""), ("Warn", "-warn")])
def test_admission_can_be_decided_by_the_operator(action: str, suffix: str) -> None:
    """Then the scheduler changes no binding, and lacks the right. A change from Auto to Warn
    deletes the bindings that may deny by then."""
    rendered = objects({"admission": {"action": action}})
    bindings = {
        each["metadata"]["name"]: each["spec"]["validationActions"]
        for each in rendered
        if each["kind"] == "ValidatingAdmissionPolicyBinding"
    }
    tenants = ("allocations", "dialects", "environment", "requests", "scheduler-names")
    own = ("agents", "writer")
    assert bindings == {
        **{f"gpuslice-{name}{suffix}": [action] for name in tenants},
        **{f"gpuslice-{name}": ["Deny"] for name in own},
        "gpuslice-resource-names": ["Warn"],
    }
    assert "gpuslice.io/admission" not in str(rendered)
    role = one(rendered, "ClusterRole", "gpuslice-scheduler")
    assert "admissionregistration.k8s.io" not in str(role)


def test_the_runtime_class_of_kais_chart_is_the_agents() -> None:
    kais = {"binder": {"resourceReservation": {"runtimeClassName": "nvidia"}}}
    own = {**kais, "agent": {"runtimeClassName": "own"}}
    for values, found in (({}, None), (kais, "nvidia"), (own, "own")):
        agent = one(objects(values), "DaemonSet", "gpuslice-agent")
        assert agent["spec"]["template"]["spec"].get("runtimeClassName") == found


def test_the_switch_of_kais_chart() -> None:
    """The chart renders none of KAI's kinds where the cluster has KAI's own definition."""
    on = {"global": {"gpuSharing": True}}
    policies = {"gpuslice-kai", "gpuslice-kai-warn"}
    added = keys(objects(on)) - keys(objects())
    assert {name for _, name in added} == {"configs.kai.scheduler", *policies}
    there = keys(objects(on, "--api-versions=kai.scheduler/v1/Config")) - keys(objects())
    assert {name for _, name in there} == policies
