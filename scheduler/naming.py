"""The admission policy of the names served: the stock scheduler is not asked for a share, since it
would bind the pod without one, and a pod of ours names no node itself. Pods of other schedulers
pass.

Pure. `scheduler.profiles` prints it beside kube-scheduler's configuration, which has the same
names. The CEL by which it sees a pod in whatever becomes one, and a share in a pod, is that of the
policies in manifests/, by a test.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from contract import names

Json = Mapping[str, Any]

POLICY: Final = "gpuslice-scheduler-names"
STOCK: Final = "default-scheduler"
"""Also of pods that name no scheduler."""
LABELS: Final = {"app.kubernetes.io/part-of": "gpuslice"}
_OLD: Final = {new: old for old, new in names.DEPRECATED_RESOURCES.items()}
_SHARES: Final = (
    names.RESOURCE_GPU,
    names.RESOURCE_CORE,
    names.RESOURCE_MEMORY,
    names.RESOURCE_MEMORY_RATIO,
    names.RESOURCE_SHARED,
)
_POD_OF: Final = (
    "request.kind.kind == 'Pod' ? dyn({of})"
    " : request.kind.kind == 'CronJob' ? dyn({of}).spec.jobTemplate.spec.?template.orValue({{}})"
    " : dyn({of}).spec.?template.orValue({{}})"
)
TEMPLATE: Final = _POD_OF.format(of="object")
"""CEL: the pod, or what becomes one. The policies in manifests/ have the same, by a test."""
BEFORE: Final = "oldObject == null ? dyn({}) : " + _POD_OF.format(of="oldObject")
_SHARES_EVER: Final = (*_SHARES, *(_OLD[name] for name in _SHARES if name in _OLD))
ASKS: Final = (
    f"[{TEMPLATE}].exists(t,"
    " (t.?spec.?initContainers.orValue([]) + t.?spec.?containers.orValue([])).exists(c,"
    " ['limits', 'requests'].exists(kind, c.?resources[?kind].orValue({}).exists(n,"
    f" n in [{', '.join(f'{name!r}' for name in _SHARES_EVER)}]"
    " && sign(quantity(c.resources[kind][n])) != 0))))"
)
"""CEL, for a matchCondition, which has no variables: whether the pod asks for a share of a card."""

_TEMPLATES: Final = (
    ("", "replicationcontrollers"),
    ("apps", "deployments", "replicasets", "statefulsets", "daemonsets"),
    ("batch", "jobs", "cronjobs"),
)


def policy(served: Sequence[str]) -> Json:
    listed = ", ".join(f"'{name}'" for name in served)
    stock = ", ".join(f"'{name}'" for name in ("", STOCK))
    allowed = f"must be {' or '.join(served)} in a pod that asks for a share of a GPU"
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": POLICY, "labels": LABELS},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {
                "resourceRules": [
                    _rule("", ["CREATE"], ["pods"]),
                    *(_rule(g, ["CREATE", "UPDATE"], kinds) for g, *kinds in _TEMPLATES),
                ]
            },
            # Who asks as he must is not looked at further: that would cost the API server more.
            "matchConditions": [
                {"name": "asks-for-a-share", "expression": ASKS},
                {
                    "name": "elsewhere",
                    "expression": f"[{TEMPLATE}].exists(t,"
                    f" t.?spec.?schedulerName.orValue('') in [{listed}]"
                    " ? t.?spec.?nodeName.orValue('') != ''"
                    f" : t.?spec.?schedulerName.orValue('') in [{stock}])",
                },
            ],
            "variables": [
                {"name": "template", "expression": TEMPLATE},
                {"name": "before", "expression": BEFORE},
                {"name": "judged", "expression": "variables.template != variables.before"},
                {
                    "name": "scheduler",
                    "expression": "variables.template.?spec.?schedulerName.orValue('')",
                },
                {
                    "name": "node",
                    "expression": "variables.template.?spec.?nodeName.orValue('')",
                },
            ],
            "validations": [
                {
                    "expression": f"!variables.judged || variables.scheduler in [{listed}]",
                    "messageExpression": '"schedulerName: invalid value \'" + variables.scheduler'
                    f' + "\': {allowed}; {STOCK} would start it without a GPU"',
                },
                {
                    "expression": "!variables.judged || variables.node == ''",
                    "messageExpression": '"nodeName: invalid value \'" + variables.node'
                    " + \"': must be empty in a pod that asks for a share of a GPU, so that the"
                    ' scheduler allocates it; use a nodeSelector or an affinity instead"',
                },
            ],
        },
    }


def _rule(group: str, operations: Sequence[str], resources: Sequence[str]) -> Json:
    return {
        "apiGroups": [group],
        "apiVersions": ["v1"],
        "operations": operations,
        "resources": resources,
    }


def binding() -> Json:
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": POLICY, "labels": LABELS},
        "spec": {"policyName": POLICY, "validationActions": ["Deny"]},
    }
