"""Values that the chart refuses, and the effect of each value."""

from __future__ import annotations

import json
import re
from typing import Any, Final

import pytest
import yaml

from gpuslice.contract.dialects import DIALECTS
from tests.chart.rendering import (
    EVERYTHING,
    Json,
    command,
    everything,
    keys,
    objects,
    one,
    pod,
    with_hooks,
)
from tests.support import ROOT, table_below
from tools import chart

pytestmark = pytest.mark.cluster

_HAMI: Final = "dialects.hami.enabled=true"
_POOL: Final = "agent.nodePools[0].name=a,agent.nodePools[0].agent"
REFUSED: Final = {
    "agent.strickt=true": "at '/agent': additional properties 'strickt' not allowed",
    "scheduler.enabled=yes": "at '/scheduler/enabled': got string, want boolean",
    "scheduler.replicas=0": "at '/scheduler/replicas': minimum: got 0, want 1",
    "schedulerNames={gpuslice-scheduler,volcano}": (
        "at '/schedulerNames/1': value must be one of 'gpuslice-scheduler', 'koord-scheduler'"
    ),
    "schedulerNames={koord-scheduler}": "at '/schedulerNames': no items match contains schema",
    "admission.action=Audit": (
        "at '/admission/action': value must be one of 'Auto', 'Warn', 'Deny'"
    ),
    "driver.root=run/nvidia/driver": (
        "at '/driver/root': 'run/nvidia/driver' does not match pattern"
    ),
    "images.agent.digest=latest": "at '/images/agent/digest': 'latest' does not match pattern",
    "agent.resources.limits.memory=1 GB": (
        "at '/agent/resources/limits/memory': '1 GB' does not match pattern"
    ),
    f"{_POOL}.strict=true": ("at '/agent/nodePools/0/agent': missing property 'nodeSelector'"),
    "commonLabels.helm\\.sh/chart=a": "invalid propertyName 'helm.sh/chart'",
    "monitoring.podMonitor.enabled=true": (
        "agent.http.address: invalid value 127.0.0.1: must be reachable by Prometheus"
    ),
    "frontEnd=both": "at '/frontEnd': value must be one of 'annotations', 'claims'",
    "claims.nvidiaGpu=true,wholeGpus=any": (
        "wholeGpus: invalid value any: must be off with frontEnd claims and with claims.nvidiaGpu"
    ),
    f"frontEnd=claims,{_POOL}.nodeSelector.a=b,agent.nodePools[0].wholeGpus=any": (
        "wholeGpus: invalid value any: must be off with frontEnd claims and with claims.nvidiaGpu"
    ),
    f"{_HAMI},wholeGpus=any": (
        "wholeGpus: invalid value any: must be off while dialects.hami.enabled is true"
    ),
    f"{_HAMI},{_POOL}.nodeSelector.a=b,agent.nodePools[0].wholeGpus=6\\,7": (
        "wholeGpus: invalid value 6,7: must be off while dialects.hami.enabled is true"
    ),
}


@pytest.mark.parametrize("values", REFUSED)
def test_a_wrong_value_is_refused_with_the_field(values: str) -> None:
    with pytest.raises(chart.ChartError) as caught:
        objects({}, f"--set={values}")
    assert REFUSED[values] in str(caught.value)


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ("--namespace=default", "namespace: invalid value default: must be gpuslice-system"),
        ("--kube-version=v1.29.9", "is incompatible with Kubernetes v1"),
    ],
)
def test_another_namespace_and_an_older_cluster_are_refused(option: str, text: str) -> None:
    with pytest.raises(chart.ChartError) as caught:
        objects({}, option)
    assert text in str(caught.value)


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
    found = [f"{path}/{key}" for key in set(known) ^ set(given) if key != "claims"]
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
    first, extender = pod(rendered, "Deployment", "gpuslice-scheduler")["containers"]
    assert first["image"] == f"registry.k8s.io/kube-scheduler:{tag}"
    assert f"--kube-scheduler-version={tag}" in extender["command"]
    has_quota = ("ResourceQuota", "gpuslice-critical-pods") in keys(rendered)
    assert has_quota == ("gke" in version)


def test_images_come_from_the_registry_of_the_values() -> None:
    specs = [
        each["spec"]["template"]["spec"]
        for each in everything()
        if each["kind"] in ("DaemonSet", "Deployment")
    ]
    containers = (c for s in specs for c in (*s.get("initContainers", ()), *s["containers"]))
    assert {each["image"] for each in containers} == {
        f"registry.example/team/gpuslice-agent@sha256:{'0' * 64}",
        "registry.example/team/gpuslice-scheduler:0.1.1",
        "registry.k8s.io/kube-scheduler:v1.36.3",
    }
    digest = f"sha256:{'1' * 64}"
    pinned = objects({"images": {"kubeScheduler": {"tag": "v1.36.1", "digest": digest}}})
    first, extender = pod(pinned, "Deployment", "gpuslice-scheduler")["containers"]
    assert first["image"] == f"registry.k8s.io/kube-scheduler@{digest}"
    assert "--kube-scheduler-version=v1.36.1" in extender["command"]


def test_the_common_labels_are_on_every_object_and_pod() -> None:
    for each in everything():
        template = each.get("spec", {}).get("template", {"metadata": each["metadata"]})
        for metadata in (each["metadata"], template["metadata"]):
            assert metadata["labels"]["example.com/cost-center"] == "ml", each["metadata"]["name"]


def test_prometheus_reads_kube_schedulers_metrics_too() -> None:
    """The agent's address matters only where the agent is scraped."""
    monitor = {"enabled": True, "components": ["scheduler"]}
    rendered = objects({"monitoring": {"podMonitor": monitor}})
    spec = one(rendered, "PodMonitor", "gpuslice")["spec"]
    assert spec["selector"]["matchExpressions"][0]["values"] == ["gpuslice-scheduler"]
    endpoints = {each["port"]: each.get("scheme") for each in spec["podMetricsEndpoints"]}
    assert endpoints == {"http": None, "kube-scheduler": "https"}
    option = "--authorization-always-allow-paths=/healthz,/livez,/readyz,/metrics"
    assert option in command(rendered, "Deployment", "gpuslice-scheduler")
    assert option not in command(objects(), "Deployment", "gpuslice-scheduler")
    (both,) = one(everything(), "PodMonitor", "gpuslice")["spec"]["selector"]["matchExpressions"]
    assert both["values"] == ["gpuslice-agent", "gpuslice-scheduler"]


def test_the_document_lists_each_image() -> None:
    """The list is for clusters without access to the internet. It includes the hooks' images."""
    text = yaml.safe_dump_all(with_hooks(f"--values={EVERYTHING}", "--set=images.registry="))
    images = set(re.findall(r"image: ['\"]?([^:@'\"\s]+)", text))
    table = table_below((ROOT / "docs" / "install.md").read_text(), "image | tag | used by")
    assert images == {name.strip("`") for name, *_ in table}


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
def test_admission_sets_the_scheduler_of_hamis_pods_where_it_can(version: str) -> None:
    api = f"admissionregistration.k8s.io/{version}"
    kinds = {"MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding"}

    def found(*options: str) -> set[tuple[str, str]]:
        rendered = objects(SWITCHES["hami"], *options)
        return {(e["kind"], e["apiVersion"]) for e in rendered if e["kind"] in kinds}

    served = f"--api-versions={api}/MutatingAdmissionPolicy"
    assert found(served) == {(kind, api) for kind in kinds}
    assert found() == set()


def test_a_changed_configuration_restarts_the_scheduler() -> None:
    def checksum(values: Json) -> str:
        spec = one(objects(values), "Deployment", "gpuslice-scheduler")["spec"]
        return str(spec["template"]["metadata"]["annotations"]["checksum/configuration"])

    served = {"schedulerNames": ["gpuslice-scheduler", "koord-scheduler"]}
    assert checksum({}) != checksum(served)


SWITCHES: Final[dict[str, Json]] = {
    "kai": {"global": {"gpuSharing": True}},
    "volcano": {"dialects": {"volcano": {"enabled": True}}},
    "hami": {"dialects": {"hami": {"enabled": True}}},
}


@pytest.mark.parametrize("name", SWITCHES)
def test_a_dialect_that_is_on_is_served(name: str) -> None:
    """Each dialect adds its schedulerName to gpuslice's own."""
    (dialect,) = (each for each in DIALECTS if each.name == name)
    rendered = objects(SWITCHES[name])
    config = one(rendered, "ConfigMap", "gpuslice-kube-scheduler")["data"]["kube-scheduler.yaml"]
    served = {each["schedulerName"] for each in yaml.safe_load(config)["profiles"]}
    assert served == {"gpuslice-scheduler", dialect.scheduler_name}
    option = f"--dialects=koordinator,{name}"
    assert option in command(rendered, "Deployment", "gpuslice-scheduler", 1)
    assert option in command(rendered, "DaemonSet", "gpuslice-agent")
    for policy in _OF_TENANTS:
        text = json.dumps(one(rendered, "ValidatingAdmissionPolicy", f"gpuslice-{policy}"))
        assert all(f"'{each}'" in text for each in served)


_OF_TENANTS: Final = ("allocations", "dialects", "environment", "requests", "scheduler-names")


@pytest.mark.parametrize(("action", "suffix"), [("Deny", ""), ("Warn", "-warn")])
def test_admission_can_be_decided_by_the_operator(action: str, suffix: str) -> None:
    """The scheduler may not change a binding with a fixed action. Warn's bindings have other names.
    Therefore a change from Auto to Warn deletes those that the scheduler has set to Deny."""
    rendered = objects({"admission": {"action": action}})
    bindings = {
        each["metadata"]["name"]: each["spec"]["validationActions"]
        for each in rendered
        if each["kind"] == "ValidatingAdmissionPolicyBinding"
    }
    assert bindings == {
        **{f"gpuslice-{name}{suffix}": [action] for name in (*_OF_TENANTS, "quotas")},
        **{f"gpuslice-{name}": ["Deny"] for name in ("agents", "writer")},
        "gpuslice-resource-names": ["Warn"],
    }
    assert "gpuslice.io/admission" not in str(rendered)
    role = one(rendered, "ClusterRole", "gpuslice-scheduler")
    assert "admissionregistration.k8s.io" not in str(role)


def test_the_runtime_class_of_kais_chart_is_the_agents() -> None:
    kais = {"binder": {"resourceReservation": {"runtimeClassName": "nvidia"}}}
    own = {**kais, "agent": {"runtimeClassName": "own"}}
    for values, found in (({}, None), (kais, "nvidia"), (own, "own")):
        agent = pod(objects(values), "DaemonSet", "gpuslice-agent")
        assert agent.get("runtimeClassName") == found


def test_the_switch_of_kais_chart() -> None:
    """The chart renders no object of KAI's kind where the cluster has KAI's own definition."""
    policies = {"gpuslice-kai", "gpuslice-kai-warn"}
    for options, added in (
        ((), {"configs.kai.scheduler", *policies}),
        (("--api-versions=kai.scheduler/v1/Config",), policies),
    ):
        found = keys(objects(SWITCHES["kai"], *options)) - keys(objects())
        assert {name for _, name in found} == added
