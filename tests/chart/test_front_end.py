"""What frontEnd changes in an installation."""

from __future__ import annotations

from typing import Any, Final

import pytest

from gpuslice.contract import names
from gpuslice.kube.log_lines import Format
from scheduler import command_line
from tests.chart.rendering import Json, command, keys, objects, one, pod, with_hooks
from tools import chart

pytestmark = pytest.mark.cluster

CLAIMS: Final[Json] = {"frontEnd": names.FRONT_END_CLAIMS}
_CLASS: Final = ("DeviceClass", names.DEVICE_CLASS)


def test_claims_are_refused_before_kubernetes_1_36() -> None:
    assert objects(CLAIMS, "--kube-version=v1.36.0-gke.1")
    with pytest.raises(chart.ChartError) as caught:
        objects(CLAIMS, "--kube-version=v1.35.9")
    assert (
        "frontEnd: invalid value claims: must be annotations before Kubernetes 1.36, whose"
        " kube-scheduler is the first to share a device by capacity without alpha feature gates;"
        " this is v1.35.9"
    ) in str(caught.value)


def test_a_node_may_serve_claims_where_the_default_is_annotations() -> None:
    """Kubernetes before 1.36 does not get objects of kinds that it lacks."""
    rules = [
        one(objects({}, f"--kube-version={version}"), "ClusterRole", names.AGENT)["rules"]
        for version in ("v1.35.9", "v1.36.0")
    ]
    older, newer = ({kind for rule in each for kind in rule["resources"]} for each in rules)
    assert newer - older == {"resourceslices", "resourceclaims"}
    assert _CLASS in keys(objects())
    assert _CLASS not in keys(objects({}, "--kube-version=v1.35.9"))


@pytest.mark.parametrize(
    ("others", "has_scheduler"),
    [
        ({}, False),
        ({"dialects": {"hami": {"enabled": True}}}, True),
        ({"global": {"gpuSharing": True}}, True),
        ({"queues": {"enabled": True}}, True),
        ({"dialects": {"hami": {"enabled": True}}, "scheduler": {"enabled": False}}, False),
    ],
)
def test_claims_need_the_scheduler_only_for_dialects_and_queues(
    others: dict[str, Any], has_scheduler: bool
) -> None:
    found = keys(objects({**CLAIMS, **others}))
    assert (("Deployment", names.SCHEDULER_NAME) in found) == has_scheduler
    assert (("ClusterRole", names.SCHEDULER_NAME) in found) == has_scheduler


def test_the_templates_of_claims_have_a_program_of_their_own() -> None:
    """It has no other rights than the Deployment's template says, and serves nothing."""
    assert ("Deployment", names.CLAIM_TEMPLATES) not in keys(objects())
    rendered = objects({**CLAIMS, "scheduler": {"logFormat": "json"}})
    words = command(rendered, "Deployment", names.CLAIM_TEMPLATES)
    assert words[:3] == ["python", "-m", "scheduler"]
    flags = command_line.parser({}).parse_args(words[3:])
    assert (flags.claim_templates, flags.log_format) == (True, Format.JSON)
    (container,) = pod(rendered, "Deployment", names.CLAIM_TEMPLATES)["containers"]
    assert "ports" not in container


@pytest.mark.parametrize("admission", ["true", "false"])
def test_helms_test_checks_that_program_where_it_is_installed(admission: str) -> None:
    rendered = with_hooks("--set=frontEnd=claims", f"--set=admission.enabled={admission}")
    (container,) = one(rendered, "Pod", "gpuslice-test-run")["spec"]["containers"]
    is_installed = ("Deployment", names.CLAIM_TEMPLATES) in keys(rendered)
    assert is_installed is (admission == "true")
    assert (names.CLAIM_TEMPLATES in container["command"]) is is_installed


def test_policies_deny_at_once_where_no_extender_could_turn_them_on() -> None:
    def actions(values: Json) -> set[str]:
        kind = "ValidatingAdmissionPolicyBinding"
        found = (each for each in objects(values) if each["kind"] == kind)
        return {
            action
            for each in found
            if each["metadata"]["name"] != "gpuslice-resource-names"
            for action in each["spec"]["validationActions"]
        }

    assert actions(CLAIMS) == {"Deny"}
    assert actions({**CLAIMS, "admission": {"action": "Warn"}}) == {"Warn", "Deny"}
    assert actions({**CLAIMS, "queues": {"enabled": True}}) == {"Audit", "Warn", "Deny"}


def test_whole_gpus_by_their_usual_name_are_off() -> None:
    assert "extendedResourceName" not in one(objects(), *_CLASS)["spec"]
    mapped = one(objects({"claims": {"nvidiaGpu": True}}), *_CLASS)
    assert mapped["spec"]["extendedResourceName"] == names.RESOURCE_NVIDIA_GPU
