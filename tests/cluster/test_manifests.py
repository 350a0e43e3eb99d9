"""The manifests agree with the code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from contract import names
from nri_plugin.distributor import command as distributor
from scheduler.core.fleet import MAX_BYTES
from scheduler.kubernetes import profiles
from scheduler.kubernetes.profiles import Profiles
from scheduler.service import Settings
from tests.cluster.admission.test_placement import DENIED
from tests.cluster.installing import MANIFESTS, PROBES, policy_texts

Json = dict[str, Any]

FILES: Final = sorted(MANIFESTS.rglob("*.yaml"))
_NAME: Final = re.compile(
    r"(?:required-plugins\.noderesource\.dev|(?:\w+\.)?(?:koordinator\.sh|gpuslice\.io)"
    r"|kubernetes\.io(?=/gpu|/rdma|/fpga))(?:/[\w.-]+)?"
)
_GROUP: Final = names.DEVICE_API_VERSION.partition("/")[0]


def documents(*kinds: str) -> list[Json]:
    loaded = (each for path in FILES for each in yaml.safe_load_all(path.read_text()))
    return [each for each in loaded if not kinds or each["kind"] in kinds]


def named(kind: str, name: str) -> Json:
    (only,) = (each for each in documents(kind) if each["metadata"]["name"] == name)
    return only


def of_the_contract() -> set[str]:
    texts: set[str] = set(names.DEPRECATED_RESOURCES)
    for value in vars(names).values():
        if isinstance(value, str):
            texts.add(value)
        elif isinstance(value, tuple):
            texts |= set(value)
    return texts | {_GROUP, f"{names.DEVICE_PLURAL}.{_GROUP}"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_name_of_the_wire_is_the_contracts(path: Path) -> None:
    without_comments = re.sub(r"^ *#.*$", "", path.read_text(), flags=re.MULTILINE)
    found = set(_NAME.findall(without_comments))
    prefixes = {f"{names.ANNOTATION_REQUIRED_PLUGINS}/"}
    assert found - of_the_contract() - prefixes - {"koordinator.sh", "gpuslice.io"} == set()


def test_what_is_generated_is_what_is_generated_now() -> None:
    written = (MANIFESTS / "30-profiles.yaml").read_text()
    assert written == profiles.manifest(Profiles()), "python -m scheduler profiles > manifests/..."


def test_everything_has_its_place_and_its_label() -> None:
    for each in documents():
        metadata = each["metadata"]
        assert metadata["labels"]["app.kubernetes.io/part-of"] == "gpuslice", metadata
        assert metadata.get("namespace", names.NAMESPACE) == names.NAMESPACE, metadata
    assert named("Namespace", names.NAMESPACE)


# --- policies


def policies() -> dict[str, Json]:
    return {each["metadata"]["name"]: each["spec"] for each in documents(_POLICY)}


_POLICY: Final = "ValidatingAdmissionPolicy"


def test_each_policy_denies_and_fails_closed_but_two() -> None:
    bound = {
        each["spec"]["policyName"]: each["spec"]["validationActions"]
        for each in documents(f"{_POLICY}Binding")
    }
    assert bound.pop("gpuslice-resource-names") == ["Warn"]
    assert bound == {name: ["Deny"] for name in policies() if name != "gpuslice-resource-names"}
    open_ones = [name for name, spec in policies().items() if spec["failurePolicy"] != "Fail"]
    assert open_ones == ["gpuslice-writer", "gpuslice-resource-names"]
    of_ours = {"gpuslice-writer", "gpuslice-agents", "gpuslice-removals"}
    assert set(PROBES) | of_ours | {"gpuslice-resource-names"} == set(policies())


def test_policies_that_look_at_the_same_thing_look_alike() -> None:
    seen: dict[str, list[str]] = {"template": [], "before": [], "requests-share": []}
    for spec in policies().values():
        for each in (*spec.get("variables", ()), *spec.get("matchConditions", ())):
            if each["name"] in seen:
                seen[each["name"]].append(plain(each["expression"]))
    assert {name: len(found) for name, found in seen.items()} == {
        "template": 4,
        "before": 2,
        "requests-share": 2,
    }
    assert all(len(set(found)) == 1 for found in seen.values())


def plain(expression: str) -> str:
    return re.sub(r"\s+", "", expression)


def test_templates_are_judged_of_every_kind_of_workload() -> None:
    kinds = {
        name: {
            resource
            for rule in spec["matchConstraints"]["resourceRules"]
            for resource in rule["resources"]
        }
        for name, spec in policies().items()
    }
    workloads = {
        *("pods", "replicationcontrollers", "deployments", "replicasets", "statefulsets"),
        *("daemonsets", "jobs", "cronjobs"),
    }
    judged = ("gpuslice-requests", "gpuslice-resource-names", profiles.POLICY)
    assert all(kinds[policy] == workloads for policy in judged)
    assert kinds["gpuslice-environment"] == workloads | {"pods/ephemeralcontainers"}
    assert kinds["gpuslice-allocations"] == workloads | {"pods/*", "bindings"}


def texts_in(policy: str, variable: str = "") -> set[str]:
    """The string literals in a policy's expressions."""
    spec = policies()[policy]
    found = [v["expression"] for v in spec["variables"] if not variable or v["name"] == variable]
    found += [] if variable else [v["expression"] for v in spec["validations"]]
    return {text for expression in found for text in re.findall(r"'([^']*)'", expression)}


def test_the_pods_of_our_scheduler_are_known_alike() -> None:
    """And by no name other than the default ones."""
    texts = [path.read_text() for path in FILES if re.match(r"5[0136]-", path.name)]
    assert _compared("".join(texts)) == [f"['{names.SCHEDULER_NAME}']"] * 4
    assert len(_compared("".join(policy_texts()))) == 4


def test_a_further_name_is_served_by_every_policy() -> None:
    own = profiles.manifest(Profiles(profiles.NAMES))
    whole = profiles.manifest(Profiles(profiles.NAMES), policy_texts())
    assert _compared(whole[len(own) :]) == [f"['{names.SCHEDULER_NAME}', 'koord-scheduler']"] * 4
    there = [each for text in policy_texts() for each in yaml.safe_load_all(text)]
    loaded = list(yaml.safe_load_all(whole))[-len(there) :]
    kinds = [(each["kind"], each["metadata"]["name"]) for each in loaded]
    assert kinds == [(each["kind"], each["metadata"]["name"]) for each in there]


def _compared(text: str) -> list[str]:
    return re.findall(r"schedulerName\.orValue\(''\) in (\[[^\]]*\])", text)


def test_the_reserved_annotations_are_those_that_the_binding_carries() -> None:
    policy = "gpuslice-allocations"
    assert texts_in(policy, "changed") | texts_in(policy, "allocated") == {
        names.ANNOTATION_DEVICE_ALLOCATED,
        names.ANNOTATION_GRANTS,
        names.ANNOTATION_WRITER,
        names.ANNOTATION_REQUIRED_PLUGINS,
        f"{names.ANNOTATION_REQUIRED_PLUGINS}/",
        *("", "gpu", r"\\", names.PLUGIN_NAME, f'["{names.PLUGIN_NAME}"]'),
    }
    condition, _ = policies()["gpuslice-allocations"]["matchConditions"]
    account = f"system:serviceaccount:{names.NAMESPACE}:{names.SCHEDULER_NAME}"
    assert re.findall(r"'([^']*)'", condition["expression"]) == [account]


def test_the_denied_variables_are_those_of_the_tests() -> None:
    said = {text for text in texts_in("gpuslice-environment", "found") if text.isupper()}
    denied = {re.sub(r"_\d+$", "_", name) for name in DENIED}
    # One is the text of a message.
    assert {text for text in said if text.isidentifier()} == denied


def test_the_bounds_are_those_of_the_code() -> None:
    text = (MANIFESTS / "51-admission-requests.yaml").read_text()
    assert set(re.findall(r"\d{6,}", text)) == {str(MAX_BYTES), str(2**63 - 1)}
    assert set(re.findall(r"(?<!/ )a\.gpus (?:<=|>) (\d+)", text)) == {str(names.MAX_GPUS)}


# --- the scheduler's pods


def test_the_pod_is_the_scheduler_that_the_rest_speaks_of() -> None:
    deployment = named("Deployment", names.SCHEDULER_NAME)["spec"]
    pod = deployment["template"]["spec"]
    assert deployment["replicas"] == 2
    assert pod["serviceAccountName"] == names.SCHEDULER_NAME
    assert pod["schedulerName"] not in profiles.NAMES
    config, state = pod["volumes"]
    assert config["configMap"] == {"name": profiles.CONFIG_MAP}
    first, second = pod["containers"]
    (mount,) = first["volumeMounts"]
    assert f"--config={mount['mountPath']}/{profiles.CONFIG_FILE}" in first["command"]
    (mount,) = second["volumeMounts"]
    assert (mount["name"], "emptyDir" in state) == (state["name"], True)
    assert f"--state-dir={mount['mountPath']}" in second["command"]
    assert second["command"][:4] == ["python", "-m", "scheduler", "serve"]
    (port,) = second["ports"]
    assert Settings().http == ("0.0.0.0", port["containerPort"])
    assert Settings().listen == ("127.0.0.1", profiles.EXTENDER_PORT)
    for container in (first, second):
        assert container["livenessProbe"] and container["readinessProbe"]
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
    theirs, ours = (container["livenessProbe"] for container in (first, second))
    # kube-scheduler is restarted, and stops leading, if its extender does not start; a restart of
    # the extender alone does not restart kube-scheduler.
    assert theirs["httpGet"] == {"path": ours["httpGet"]["path"], "port": port["containerPort"]}
    assert theirs["failureThreshold"] > ours["failureThreshold"]
    budget = named("PodDisruptionBudget", names.SCHEDULER_NAME)["spec"]
    assert budget["selector"] == deployment["selector"]


def test_the_network_policy_covers_the_schedulers_pods_and_the_ports_of_their_metrics() -> None:
    spec = named("NetworkPolicy", names.SCHEDULER_NAME)["spec"]
    deployment = named("Deployment", names.SCHEDULER_NAME)["spec"]
    selected = spec["podSelector"]["matchLabels"].items()
    assert selected and selected <= deployment["template"]["metadata"]["labels"].items()
    (rule,) = spec["ingress"]
    ((peer,),) = (each.keys() for each in rule["from"])
    assert peer == "namespaceSelector"
    containers = deployment["template"]["spec"]["containers"]
    ports = {port["containerPort"] for each in containers for port in each["ports"]}
    assert {each["port"] for each in rule["ports"]} == ports


# --- the distributor's pods


def test_the_distributor_has_what_it_needs_and_no_more() -> None:
    daemon_set = named("DaemonSet", "gpuslice-distributor")["spec"]
    pod = daemon_set["template"]["spec"]
    (container,) = pod["containers"]
    command = container["command"]
    assert command[:4] == ["python", "-m", "nri_plugin", "distribute"]
    given = distributor.parser().parse_args(command[4:])
    assert container["readinessProbe"]["exec"]["command"] == [*command, "--check"]
    ((volume,), (mount,)) = pod["volumes"], container["volumeMounts"]
    assert volume["hostPath"]["path"] == mount["mountPath"] == str(given.store_dir.parent)
    assert {"hostPID", "hostNetwork", "hostIPC", "serviceAccountName"}.isdisjoint(pod)
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert daemon_set["updateStrategy"]["rollingUpdate"] == {"maxUnavailable": 1, "maxSurge": 0}
    assert (pod["priorityClassName"], pod["tolerations"]) == (
        "system-node-critical",
        [{"operator": "Exists"}],
    )
    assert pod["nodeSelector"] == {"nvidia.com/gpu.present": "true"}
    assert daemon_set["selector"]["matchLabels"].items() <= (
        daemon_set["template"]["metadata"]["labels"].items()
    )


def test_both_leases_and_no_other_are_the_schedulers_to_write() -> None:
    rules = named("Role", names.SCHEDULER_NAME)["rules"]
    written = [rule["resourceNames"] for rule in rules if "resourceNames" in rule]
    assert written == [[names.LEASE_SCHEDULER, profiles.LEASE]]
    unbounded = [verb for rule in rules if "resourceNames" not in rule for verb in rule["verbs"]]
    assert not {"update", "delete", "*"} & set(unbounded)


def test_no_rule_is_a_wildcard_and_no_secret_is_read() -> None:
    for role in documents("Role", "ClusterRole"):
        for rule in role["rules"]:
            listed = [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]
            assert "*" not in listed and "secrets" not in listed, rule
            assert not set(listed) & {"impersonate", "escalate", "bind"}, rule
