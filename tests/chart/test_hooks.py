"""Properties of every pod of the chart, also in Helm's hooks, and the rights of every account."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pytest

from tests.chart.rendering import EVERYTHING, Json, with_hooks

pytestmark = pytest.mark.cluster

_ROLES: Final = {"Role": "RoleBinding", "ClusterRole": "ClusterRoleBinding"}
_WEIGHT: Final = "helm.sh/hook-weight"


def _rendered() -> list[Json]:
    return with_hooks(f"--values={EVERYTHING}")


def _pods() -> Iterator[tuple[Json, Json]]:
    for each in _rendered():
        if each["kind"] == "Pod":
            yield each, each["spec"]
        elif "template" in each.get("spec", {}):
            yield each, each["spec"]["template"]["spec"]


def test_every_pod_pulls_with_the_secrets() -> None:
    secrets = [spec.get("imagePullSecrets") for _, spec in _pods()]
    assert len(secrets) > 8 and all(each == [{"name": "pull"}] for each in secrets)


def test_commands_of_hooks_run_where_the_scheduler_does_and_without_rights() -> None:
    commands = [spec for each, spec in _pods() if each["kind"] in ("Pod", "Job")]
    assert len(commands) == 4
    for spec in commands:
        (container,) = spec["containers"]
        assert spec["nodeSelector"] == {"node-role.kubernetes.io/control-plane": ""}
        assert spec["tolerations"] == [{"operator": "Exists"}]
        assert spec["securityContext"]["runAsNonRoot"]
        assert container["env"] == [{"name": "A", "value": "b"}]
        assert container["securityContext"]["readOnlyRootFilesystem"]
        assert not container["securityContext"]["allowPrivilegeEscalation"]


def test_every_role_is_bound_to_the_account_of_its_name() -> None:
    rendered = _rendered()
    bound = {
        (each["kind"], each["metadata"].get("namespace"), each["roleRef"]["name"], subject["name"])
        for each in rendered
        for subject in each.get("subjects", ())
        if each["kind"] == _ROLES[each["roleRef"]["kind"]]
    }
    accounts = {e["metadata"]["name"] for e in rendered if e["kind"] == "ServiceAccount"}
    roles = {
        (_ROLES[e["kind"]], e["metadata"].get("namespace"), *[e["metadata"]["name"]] * 2)
        for e in rendered
        if e["kind"] in _ROLES and e["metadata"]["name"] in accounts
    }
    assert len(accounts) == 5 and roles <= bound


def test_a_hook_starts_after_its_account_has_its_rights() -> None:
    rights = [e for e in _rendered() if e["kind"] in {"ServiceAccount", *_ROLES, *_ROLES.values()}]
    for each, spec in _pods():
        notes = each["metadata"].get("annotations", {})
        if "helm.sh/hook" in notes and "serviceAccountName" in spec:
            before = [
                int(right["metadata"]["annotations"][_WEIGHT])
                for right in rights
                if right["metadata"]["name"] == spec["serviceAccountName"]
            ]
            assert before and max(before) < int(notes[_WEIGHT])
