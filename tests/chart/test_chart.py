"""The chart, as Helm renders it: whole, with components switched off, and its pods."""

from __future__ import annotations

import itertools
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any, Final

import pytest
import yaml

from gpuslice.contract import names
from nri_plugin import command_line
from scheduler import endpoint
from tests.chart.rendering import (
    EVERYTHING,
    Json,
    command,
    everything,
    keys,
    objects,
    one,
    pod,
    runs_on,
    with_hooks,
)
from tests.support import ROOT, imported, run
from tools import chart, dashboard, kubernetes

pytestmark = pytest.mark.cluster


def helm(*arguments: str) -> str:
    done = run(kubernetes.ensure_helm(), *arguments, f"--namespace={chart.NAMESPACE}")
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_command_writes_the_manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The manifest has the namespace. It has no object of Helm's hooks."""
    monkeypatch.setattr(chart, "INSTALL", tmp_path / "install.yaml")
    monkeypatch.setattr(chart, "DIALECTS_FILE", tmp_path / "dialects.yaml")
    assert chart.main() == 0
    written = [*yaml.safe_load_all(chart.INSTALL.read_text())]
    assert ("Namespace", chart.NAMESPACE) in keys(written)
    assert "helm.sh/hook" not in str(written)


def test_the_committed_names_of_the_dialects_are_the_contracts() -> None:
    assert chart.DIALECTS_FILE.read_text() == chart.dialects(), "run `python -m tools.chart`"


def test_the_programs_of_the_chart_import_only_the_standard_library() -> None:
    """The programs run in the scheduler's image, which receives them as text in the chart."""
    programs = [*(chart.CHART / "files").glob("*.py")]
    assert len(programs) == 2
    for path in programs:
        assert imported(path.read_bytes()) <= sys.stdlib_module_names, path


@pytest.mark.parametrize("options", [[], [f"--values={EVERYTHING}"]], ids=["default", "everything"])
def test_helm_finds_no_fault(options: list[str]) -> None:
    assert helm("lint", "--strict", "--quiet", *options, str(chart.CHART)).strip() == ""


# --- components


def _check_references(rendered: list[Json]) -> None:
    """Check each object's label and namespace, and that every name it refers to exists."""
    found = keys(rendered)
    assert len(found) == len(rendered)
    for each in rendered:
        metadata, spec = each["metadata"], each.get("spec", {})
        assert metadata["labels"]["app.kubernetes.io/part-of"] == "gpuslice"
        assert metadata.get("namespace", names.NAMESPACE) == names.NAMESPACE
        for subject in each.get("subjects", ()):
            assert (subject["kind"], subject["name"]) in found
        if "roleRef" in each:
            assert (each["roleRef"]["kind"], each["roleRef"]["name"]) in found
        if "policyName" in spec:
            assert ("ValidatingAdmissionPolicy", spec["policyName"]) in found
        pod = spec.get("template", {}).get("spec", {})
        if account := pod.get("serviceAccountName"):
            assert ("ServiceAccount", account) in found
        volumes = {volume["name"] for volume in pod.get("volumes", ())}
        for container in (*pod.get("initContainers", ()), *pod.get("containers", ())):
            mounts = [mount["name"] for mount in container.get("volumeMounts", ())]
            assert set(mounts) <= volumes and len(set(mounts)) == len(mounts)


_SWITCHES: Final = ("scheduler", "agent", "distributor", "admission")
_POLICIES: Final[Mapping[str, set[str]]] = {
    "": {"allocations", "requests", "environment", "resource-names"},
    "scheduler": {"dialects", "quotas", "scheduler-names", "writer"},
}


@pytest.mark.parametrize(
    "on", [_SWITCHES, *itertools.combinations(_SWITCHES, 3), *((each,) for each in _SWITCHES)]
)
def test_components_are_independent(on: tuple[str, ...]) -> None:
    rendered = objects({each: {"enabled": each in on} for each in _SWITCHES})
    _check_references(rendered)

    def found(*kinds: str) -> set[str]:
        named = (name for kind, name in keys(rendered) if kind in kinds)
        return {name.removeprefix("gpuslice-") for name in named}

    assert found("Deployment", "DaemonSet") == set(on) - {"admission"}
    policies = {"agents"} if "agent" in on else set()
    if "admission" in on:
        policies |= _POLICIES[""] | (_POLICIES["scheduler"] if "scheduler" in on else set())
    assert found("ValidatingAdmissionPolicy") == policies
    assert found("ServiceAccount") == {"scheduler", "agent"} & set(on)
    assert found("Namespace") == set()


def test_everything_at_once_is_consistent() -> None:
    rendered = everything("--set=namespace.create=true")
    _check_references(rendered)
    assert {kind for kind, _ in keys(rendered)} >= {
        *("Namespace", "ResourceQuota", "NetworkPolicy", "RuntimeClass", "PodMonitor"),
        *("PrometheusRule", "PodDisruptionBudget"),
    }


def test_on_openshift_every_pod_has_a_constraint_that_admits_it() -> None:
    """A pod with a host path needs the `privileged` constraint. All others run as non-root."""
    rendered = with_hooks("--api-versions=security.openshift.io/v1")
    allowed: dict[str, set[str]] = {}
    for each in rendered:
        role = each.get("roleRef", {}).get("name", "")
        if role.startswith("system:openshift:scc:"):
            allowed[role.rpartition(":")[2]] = {subject["name"] for subject in each["subjects"]}
    templates = (each["spec"].get("template") for each in rendered if "spec" in each)
    for spec in (each["spec"] for each in templates if each):
        if any("hostPath" in volume for volume in spec.get("volumes", ())):
            assert spec.get("serviceAccountName", "default") in allowed["privileged"]
        else:
            assert spec["securityContext"]["runAsNonRoot"]
    assert allowed["nonroot-v2"] == {f"system:serviceaccounts:{names.NAMESPACE}"}
    assert "openshift" not in str(objects())


def test_argo_cd_applies_the_policies_after_the_scheduler() -> None:
    wave = "argocd.argoproj.io/sync-wave"
    later = {
        each["kind"]
        for each in objects()
        if each["metadata"].get("annotations", {}).get(wave, "0") == "1"
    }
    assert later == {"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}


def test_the_network_policy_covers_the_schedulers_pods_and_the_ports_of_their_metrics() -> None:
    rendered = everything()
    spec = one(rendered, "NetworkPolicy", names.SCHEDULER_NAME)["spec"]
    template = one(rendered, "Deployment", names.SCHEDULER_NAME)["spec"]["template"]
    selected = spec["podSelector"]["matchLabels"].items()
    assert selected and selected <= template["metadata"]["labels"].items()
    (rule,) = spec["ingress"]
    (peer,) = rule["from"]
    assert peer.keys() == {"namespaceSelector"}
    values = peer["namespaceSelector"]["matchExpressions"][0]["values"]
    assert values == [names.NAMESPACE, "monitoring", "observability"]
    containers = template["spec"]["containers"]
    ports = {port["containerPort"] for each in containers for port in each["ports"]}
    assert {each["port"] for each in rule["ports"]} == ports


def test_kube_scheduler_is_restarted_if_it_or_the_extender_hangs() -> None:
    """Each is restarted after at least 60 s. The probe waits longer than the extender does."""
    kube_scheduler, extender = pod(everything(), "Deployment", names.SCHEDULER_NAME)["containers"]
    (port,) = extender["ports"]
    probe = kube_scheduler["livenessProbe"]
    assert probe["httpGet"]["path"] in endpoint.PAGES and probe["timeoutSeconds"] > 4
    assert probe["httpGet"]["port"] == port["containerPort"]
    assert extender["livenessProbe"]["httpGet"] == {"path": "/livez", "port": port["name"]}
    assert ("127.0.0.1", kube_scheduler["ports"][0]["containerPort"]) == endpoint.KUBE_SCHEDULER
    assert "--secure-port=10259" in kube_scheduler["command"]
    assert kube_scheduler["command"][-1] == "-v=4", "extraArgs come last"


# --- the agent's pods


def _settings(words: list[str]) -> Any:
    assert words[:3] == ["python", "-m", "nri_plugin"]
    return command_line.settings_of(command_line.parse(command_line.parser(), words[3:], {}), {})


def test_the_agents_flags_are_its_own_and_their_defaults_too() -> None:
    """The chart's values and the agent's flags have equal defaults, except for paths in a pod."""
    settings = _settings(command(objects(), "DaemonSet", "gpuslice-agent"))
    plain = _settings(["python", "-m", "nri_plugin", "--library=/opt/gpuslice/libvgpu.so"])
    fields = settings.__dataclass_fields__
    assert {key for key in fields if getattr(settings, key) != getattr(plain, key)} == {
        *("host_root", "environment", "nri_socket", "cdi_dirs", "containerd_state"),
        *("kubelet_dir", "device_plugin_dir"),
    }
    assert settings.host_root == Path("/host")
    assert settings.driver_root is None, "it is searched for"


def test_all_values_of_the_agent_become_flags() -> None:
    """Each pool is a DaemonSet of its own. Every directory that a flag names is below a mount."""
    rendered = everything()
    assert ("DaemonSet", "gpuslice-agent") not in keys(rendered)
    named = ("gpuslice-agent-plain", "gpuslice-agent-operator")
    pools = [one(rendered, "DaemonSet", name)["spec"] for name in named]
    assert pools[0]["selector"] != pools[1]["selector"]
    nodes = [pool["template"]["spec"]["nodeSelector"] for pool in pools]
    assert nodes == [{"pool": "plain"}, {"pool": "operator"}]
    containers = [pool["template"]["spec"]["containers"][0] for pool in pools]
    plain, operator = (_settings(each["command"]) for each in containers)
    assert (plain.strict, operator.strict) == (True, False)
    assert (plain.whole_gpus.reserved, operator.whole_gpus.reserved) == ({"6", "7"}, set())
    assert operator.driver_root == Path("/run/nvidia/driver")
    assert operator.containerd_state == Path("/host/run/k3s/containerd")
    assert operator.nri_socket == Path("/host/var/run/nri/other.sock")
    assert operator.cdi_dirs[-1] == Path("/host/run/cdi-of-ours")
    assert operator.kubelet_dir == Path("/host/data/kubelet")
    for pool, container, settings in zip(pools, containers, (plain, operator), strict=True):
        assert settings.managed_free and settings.refuse_unenforceable
        assert settings.core_policy == "capped"
        assert settings.code_bytes == 128 << 20
        assert settings.index == "60", "extraArgs come last"
        assert settings.allowed_capabilities == {"SYS_PTRACE"}
        assert "crun-fast" in settings.runtime_handlers
        mounted = [PurePath(mount["mountPath"]) for mount in container["volumeMounts"]]
        needed = [
            *(settings.run_dir, settings.store_dir, settings.nri_socket, settings.kubelet_dir),
            *(settings.containerd_state, settings.device_plugin_dir, *settings.cdi_dirs),
        ]
        assert all(any(path.is_relative_to(each) for each in mounted) for path in needed)
        labels = pool["template"]["metadata"]["labels"]
        assert pool["selector"]["matchLabels"].items() <= labels.items()


def test_the_agents_pod_has_what_it_needs() -> None:
    spec = one(objects(), "DaemonSet", "gpuslice-agent")["spec"]
    assert spec["updateStrategy"]["rollingUpdate"] == {"maxUnavailable": 1, "maxSurge": 0}
    pod = spec["template"]["spec"]
    wanted = {
        "hostPID": True,
        "hostNetwork": True,
        "dnsPolicy": "ClusterFirstWithHostNet",
        "priorityClassName": "system-node-critical",
        "tolerations": [{"operator": "Exists"}],
    }
    assert {key: pod[key] for key in wanted} == wanted
    assert not {"nodeSelector", "initContainers"} & pod.keys()
    (container,) = pod["containers"]
    assert container["securityContext"]["privileged"] is True
    (port,) = container["ports"]
    for probe, path in (("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")):
        asked = {"host": "127.0.0.1", "port": port["name"], "path": path}
        assert container[probe]["httpGet"] == asked
    assert f"--http=127.0.0.1:{port['containerPort']}" in container["command"]
    hosts = {v["name"]: v["hostPath"]["path"] for v in pod["volumes"] if "hostPath" in v}
    mounts = {mount["name"]: mount for mount in container["volumeMounts"]}
    assert hosts == {"run": "/run/gpuslice", "host": "/", "dev": "/dev"}, "no other must exist"
    assert {name: mounts[name]["mountPath"] for name in hosts} == {**hosts, "host": "/host"}
    assert mounts["run"]["mountPropagation"] == "Bidirectional"
    assert mounts["host"]["mountPropagation"] == "HostToContainer"


# --- the nodes of agent and distributor


_GPU_NODES: Final[Mapping[str, Mapping[str, str]]] = {
    "GPU Operator": {"nvidia.com/gpu.present": "true"},
    "GKE": {"cloud.google.com/gke-accelerator": "nvidia-l4"},
    "AKS": {"kubernetes.azure.com/accelerator": "nvidia"},
    "a node group of EKS": {"k8s.amazonaws.com/accelerator": "nvidia-tesla-t4"},
    "EKS Auto Mode": {"eks.amazonaws.com/instance-gpu-manufacturer": "nvidia"},
    "Karpenter": {"karpenter.k8s.aws/instance-gpu-manufacturer": "nvidia"},
    "Node Feature Discovery": {"feature.node.kubernetes.io/pci-10de.present": "true"},
    "its class and vendor": {"feature.node.kubernetes.io/pci-0302_10de.present": "true"},
    "its class of displays": {"feature.node.kubernetes.io/pci-0300_10de.present": "true"},
}
_PAUSED: Final = {
    "container-toolkit": "paused-for-driver-upgrade",
    # mig-parted v0.11.0 to v0.15.0 sets these labels to this value during a change of MIG
    # (pkg/mig/reconfigure), except labels that are `false`.
    **dict.fromkeys(
        ("client", "dcgm", "dcgm-exporter", "gpu-feature-discovery", "nvsm"),
        "paused-for-mig-change",
    ),
}
_OTHER_NODES: Final[Mapping[str, Mapping[str, str]]] = {
    "no GPU": {"kubernetes.io/os": "linux"},
    "another vendor's": {"karpenter.k8s.aws/instance-gpu-manufacturer": "amd"},
    "none at present": {"nvidia.com/gpu.present": "false"},
    **{
        component: {
            **_GPU_NODES["GPU Operator"],
            **_GPU_NODES["GKE"],
            f"nvidia.com/gpu.deploy.{component}": state,
        }
        for component, state in _PAUSED.items()
    },
}


@pytest.mark.parametrize("component", ["agent", "distributor"])
def test_agents_run_where_a_label_of_a_provider_says_that_there_is_a_gpu(component: str) -> None:
    """Agents and distributors leave a node while GPU Operator unloads its driver or changes MIG."""
    spec = pod(objects(), "DaemonSet", f"gpuslice-{component}")
    for node, labels in _GPU_NODES.items():
        assert runs_on(spec, labels), node
        assert runs_on(spec, {**labels, "nvidia.com/gpu.deploy.container-toolkit": "true"}), node
    for node, labels in _OTHER_NODES.items():
        assert not runs_on(spec, labels), node


@pytest.mark.parametrize("options", [[], ["--set=agent.enabled=false"]])
def test_the_removal_runs_on_the_same_nodes_and_while_a_driver_is_replaced(
    options: list[str],
) -> None:
    spec = pod(with_hooks(*options), "DaemonSet", "gpuslice-uninstall")
    for labels in (*_GPU_NODES.values(), _OTHER_NODES["container-toolkit"]):
        assert runs_on(spec, labels)
    assert not runs_on(spec, _OTHER_NODES["no GPU"])


# --- what an operator reads


def _metrics(text: str) -> set[str]:
    found = re.findall(r"gpuslice_\w+", text)
    return {re.sub("_(count|bucket)$", "", name) for name in found}


_DOCUMENTS: Final = [
    (ROOT / f"docs/{name}.md").read_text() for name in ("operations", "scheduling")
]
_LISTED: Final = set(re.findall(r"^\| `(gpuslice_\w+)` \|", "".join(_DOCUMENTS), re.MULTILINE))


def test_alerts_are_of_metrics_that_exist() -> None:
    rules = one(everything(), "PrometheusRule", "gpuslice")["spec"]["groups"]
    used = _metrics(" ".join(rule["expr"] for group in rules for rule in group["rules"]))
    assert used and used <= _LISTED
    lists = re.findall(r"Alert on:\n\n(.*?)\n\n", "".join(_DOCUMENTS), re.DOTALL)
    named = set(re.findall(r"gpuslice_\w+", " ".join(lists)))
    assert len(lists) == 2 and named <= used


def test_the_committed_dashboard_is_the_programs_and_the_charts() -> None:
    text = dashboard.FILE.read_text()
    assert text == dashboard.render(), "run `python -m tools.dashboard`"
    panels = json.loads(text)["panels"]
    assert 0 < len(panels) <= 20
    expressions = [target["expr"] for panel in panels for target in panel["targets"]]
    assert _metrics(" ".join(expressions)) <= _LISTED
    config = one(everything(), "ConfigMap", "gpuslice-dashboard")
    assert config["data"] == {"gpuslice.json": text}
    assert {"grafana_dashboard": "1", "folder": "gpus"}.items() <= config["metadata"][
        "labels"
    ].items()


def test_the_notes_have_the_commands_that_verify_what_is_installed() -> None:
    options = ("--dry-run=client", "--set=scheduler.enabled=false")
    notes = helm("install", "gpuslice", str(chart.CHART), *options).partition("\nNOTES:\n")[2]
    checked = set(re.findall(r"rollout status \w+/gpuslice-(\w+)$", notes, re.MULTILINE))
    assert checked == {"agent", "distributor"}
    assert "helm test gpuslice --namespace gpuslice-system" in notes
