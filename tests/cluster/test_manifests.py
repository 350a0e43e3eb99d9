"""The manifests and the code agree."""

from __future__ import annotations

import re
from typing import Any, Final

import pytest

from gpuslice.contract import names
from gpuslice.contract.dialects import DIALECTS, LEAST_MIB
from lab.cluster import manifests
from lab.cluster.manifests import BINDING, NAMES, named
from nri_plugin import distributor
from scheduler.core.fleet import MAX_BYTES
from scheduler.dialects.reading import MIB_BYTES
from scheduler.service import Settings
from tests.chart.rendering import EVERYTHING
from tests.cluster.admission.test_placement import DENIED
from tests.cluster.installing import PROBES, policies
from tools import chart

_NAME: Final = re.compile(
    r"(?:required-plugins\.noderesource\.dev|(?:\w+\.)?(?:koordinator\.sh|gpuslice\.io)"
    r"|kubernetes\.io(?=/gpu|/rdma|/fpga))(?:/[\w.-]+)?"
)


def of_the_contract() -> set[str]:
    texts: set[str] = set(names.DEPRECATED_RESOURCES)
    for value in vars(names).values():
        if isinstance(value, str):
            texts.add(value)
        elif isinstance(value, tuple):
            texts |= set(value)
    group = names.DEVICE_API_VERSION.partition("/")[0]
    return texts | {group, f"{names.DEVICE_PLURAL}.{group}"}


@pytest.mark.parametrize("options", [[], [f"--values={EVERYTHING}"]], ids=["default", "everything"])
def test_every_name_of_the_wire_is_the_contracts(options: list[str]) -> None:
    text = chart.render("--include-crds", *options)
    found = set(_NAME.findall(re.sub(r"^ *#.*$", "", text, flags=re.MULTILINE)))
    prefixes = {f"{names.ANNOTATION_REQUIRED_PLUGINS}/", "koordinator.sh", "gpuslice.io"}
    assert found - of_the_contract() - prefixes == set()


# --- policies


def test_policies_on_tenants_warn_until_the_scheduler_is_available() -> None:
    """Policies on gpuslice's own accounts deny at once. `gpuslice-resource-names` only warns."""
    found = manifests.objects(BINDING)
    auto = {
        each["metadata"]["name"]
        for each in found
        if each["metadata"]["labels"].get(names.LABEL_ADMISSION) == names.ADMISSION_AUTO
    }
    assert auto == {*PROBES, "gpuslice-quotas"}
    assert {e["metadata"]["name"]: e["spec"]["validationActions"] for e in found} == {
        **{name: ["Audit"] for name in auto},
        **{f"{name}-warn": ["Warn"] for name in auto},
        **{name: ["Deny"] for name in ("gpuslice-writer", "gpuslice-agents")},
        "gpuslice-resource-names": ["Warn"],
    }
    patched = [
        rule["resourceNames"]
        for rule in named("ClusterRole", names.SCHEDULER_NAME)["rules"]
        if "admissionregistration.k8s.io" in rule["apiGroups"] and "patch" in rule["verbs"]
    ]
    may = (
        auto
        | {f"gpuslice-{each.name}" for each in DIALECTS if each.switch}
        | {"gpuslice-queues", "gpuslice-claims"}
    )
    assert [set(each) for each in patched] == [may | {f"{name}-warn" for name in may}]


def test_each_policy_fails_closed_but_two() -> None:
    open_ones = [name for name, spec in policies().items() if spec["failurePolicy"] != "Fail"]
    assert open_ones == ["gpuslice-resource-names", "gpuslice-writer"]


def test_the_denied_variables_are_those_of_the_tests() -> None:
    variables = policies()["gpuslice-environment"]["variables"]
    (found,) = (each["expression"] for each in variables if each["name"] == "found")
    texts = {text for text in re.findall(r"'([^']*)'", found) if text.isupper()}
    # One of the texts in capital letters is no variable's name, but a part of an error message.
    denied = {re.sub(r"_\d+$", "_", name) for name in DENIED}
    assert {text for text in texts if text.isidentifier()} == denied


def test_the_bounds_are_those_of_the_code() -> None:
    folder = chart.CHART / "templates/admission"
    text = (folder / "requests.yaml").read_text()
    shared = (folder / "_policies.tpl").read_text()
    least = LEAST_MIB * MIB_BYTES
    bounds = MAX_BYTES, MAX_BYTES // MIB_BYTES, least, 2**63 - 1
    assert set(re.findall(r"\d{6,}", text + shared)) == set(map(str, bounds))
    assert set(re.findall(r"(?<!/ )a\.gpus (?:<=|>) (\d+)", text)) == {str(names.MAX_GPUS)}


# --- pods


def test_the_schedulers_deployment_matches_the_other_manifests() -> None:
    deployment = named("Deployment", names.SCHEDULER_NAME)["spec"]
    pod = deployment["template"]["spec"]
    assert deployment["replicas"] == 2
    assert pod["serviceAccountName"] == names.SCHEDULER_NAME
    assert pod["schedulerName"] not in NAMES
    (config,) = pod["volumes"]
    assert config["configMap"] == {"name": manifests.CONFIG_MAP}
    first, second = pod["containers"]
    (mount,) = first["volumeMounts"]
    assert f"--config={mount['mountPath']}/{manifests.CONFIG_FILE}" in first["command"]
    assert "volumeMounts" not in second
    assert second["command"][:4] == ["python", "-m", "scheduler", "serve"]
    (port,) = second["ports"]
    assert Settings().http == ("0.0.0.0", port["containerPort"])
    host, port_number = Settings().listen
    (asked,) = manifests.configuration()["extenders"]
    assert asked["urlPrefix"] == f"http://{host}:{port_number}"
    for container in (first, second):
        assert container["livenessProbe"] and container["readinessProbe"]
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
    theirs, ours = (container["livenessProbe"] for container in (first, second))
    # The probes of both containers ask the extender (tests/chart/test_chart.py). That of
    # kube-scheduler may fail more often, so that the kubelet first restarts only the extender.
    assert theirs["failureThreshold"] > ours["failureThreshold"]
    budget = named("PodDisruptionBudget", names.SCHEDULER_NAME)["spec"]
    assert budget["selector"] == deployment["selector"]


def test_the_distributor_has_what_it_needs_and_no_more() -> None:
    daemon_set = named("DaemonSet", "gpuslice-distributor")["spec"]
    pod = daemon_set["template"]["spec"]
    (container,) = pod["containers"]
    command = container["command"]
    assert command[:4] == ["python", "-m", "nri_plugin", "distribute"]
    given = distributor.parser().parse_args(command[4:])
    ((volume,), (mount,)) = pod["volumes"], container["volumeMounts"]
    assert volume["hostPath"]["path"] == "/"
    assert mount["mountPath"] == str(given.host_root)
    assert {"hostPID", "hostNetwork", "hostIPC", "serviceAccountName"}.isdisjoint(pod)
    wanted: dict[str, Any] = {
        "automountServiceAccountToken": False,
        "priorityClassName": "system-node-critical",
        "tolerations": [{"operator": "Exists"}],
    }
    assert {key: pod[key] for key in wanted} == wanted
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert daemon_set["updateStrategy"]["rollingUpdate"] == {"maxUnavailable": 1, "maxSurge": 0}
    selected = daemon_set["selector"]["matchLabels"].items()
    assert selected <= daemon_set["template"]["metadata"]["labels"].items()


# --- rights


def test_kube_schedulers_lease_and_no_other_is_the_schedulers_to_write() -> None:
    rules = named("Role", names.SCHEDULER_NAME)["rules"]
    written = [rule["resourceNames"] for rule in rules if "resourceNames" in rule]
    assert written == [[names.LEASE_KUBE_SCHEDULER]]
    unbounded = [verb for rule in rules if "resourceNames" not in rule for verb in rule["verbs"]]
    assert not {"update", "delete", "*"} & set(unbounded)


def test_no_rule_is_a_wildcard_and_no_secret_is_read() -> None:
    for role in manifests.objects("Role", "ClusterRole"):
        for rule in role["rules"]:
            listed = {*rule["apiGroups"], *rule["resources"], *rule["verbs"]}
            assert not listed & {"*", "secrets", "impersonate", "escalate", "bind"}, rule
