"""What to do about each reason for which a pod waits, is refused or is slow. Pure tables.

Tests compare the keys with the components' own enumerations, so a new reason needs an entry here.
The reasons' texts stay in their modules.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from string import Formatter
from typing import Final

from gpuslice.contract import names
from gpuslice.contract.grant_file import Policy
from nri_plugin.policy import refusals
from nri_plugin.policy.refusals import Reason as Refused
from scheduler import events
from scheduler.core.reasons import Reason as Waits

_AGENTS: Final = f"-n {names.NAMESPACE} get pods -o wide -l {names.LABEL_NAME}={names.AGENT}"


class Do(StrEnum):
    """Instructions. Fields: pod, namespace, node."""

    ADD_NODE = "add a node with such GPUs, or change what the pod requests"
    AGENT = f"find the node's agent, and its log: kubectl {_AGENTS}"
    CAPACITY = "request less, wait until another pod of the node ends, or add a node"
    CORE = f"request more {names.RESOURCE_CORE}, or place the pod beside fewer pods"
    CRITERIA = (
        "change what kube-scheduler names above: the pod's other requests, selectors or taints"
    )
    DESCRIBE = "see what the kubelet says: kubectl -n {namespace} describe pod {pod}"
    DOCTOR = (
        "have the operator run `python -m nri_plugin doctor` in the agent's pod of node {node}:"
        f" kubectl {_AGENTS}"
    )
    ENDED = "nothing: it has ended; create it again to run it again"
    EXPLAIN = "explain one of these pods"
    FAIR = f"recreate the pod with {names.ANNOTATION_COMPUTE}: {Policy.FAIR}, or more core"
    FULL = "nothing: the pod itself fills the GPU's time"
    GATES = "remove the gates, or wait for the controller that removes them"
    GPU = "have the operator repair or uncordon the GPU: kubectl get device {node} -o yaml"
    IMAGE = "change the image as the reason says, and create the pod again"
    ISOLATES = (
        f"label the node {names.LABEL_ISOLATION_PROVIDER}={names.ISOLATION_PROVIDER}, or remove the"
        " label from the pod"
    )
    LOG = "report the defect with the log of the agent on node {node}: kubectl " + _AGENTS
    MANIFEST = (
        "place its manifest without a cluster's refusal: gpuslice simulate --from-cluster -f FILE"
    )
    NAMED = "change what the reason names, for example the quota of the namespace"
    NODE = "have the operator change the node as the reason says"
    NOTHING = "nothing: gpuslice does not affect this pod"
    OPERATOR = "have the operator of gpuslice change what the reason names"
    PARTITION = f"request one GPU, or remove {names.LABEL_PARTITION_POLICY} from the node"
    POD = "change the named field in the pod's manifest, and create the pod again"
    PREVIOUS = "see why it ended: kubectl -n {namespace} logs --previous {pod}"
    PROFILE = "profile the program: gpuslice hardly delays it"
    RESCHEDULE = "kubectl -n {namespace} delete pod {pod}; create it again if it has no controller"
    RIGHTS = "have the operator give you the ClusterRole and the Role gpuslice-viewer"
    RETRY = "wait: the kubelet retries until capacity is free"
    SCHEDULER = (
        "find the scheduler's pods, and their log: kubectl -n"
        f" {names.NAMESPACE} get pods -l {names.LABEL_NAME}=gpuslice-scheduler"
    )
    SELECTOR = "change the pod's GPU selector, or add a node with such GPUs"
    WAIT = "wait: kube-scheduler tries the pod again within minutes"


_BY_WAIT: Final = {
    Do.CRITERIA: (Waits.FITS,),
    Do.SCHEDULER: (Waits.NODE_UNKNOWN, Waits.LEASES_LOST),
    Do.AGENT: (
        *(Waits.NO_DEVICE, Waits.DEVICE_STALE, Waits.DEVICE_UNREADABLE),
        *(Waits.AGENT_MISSING, Waits.AGENT_LEASE_EXPIRED),
    ),
    Do.DOCTOR: (Waits.AGENT_NOT_READY,),
    Do.ISOLATES: (Waits.NOT_ISOLATING,),
    Do.PARTITION: (Waits.PARTITIONED,),
    Do.ADD_NODE: (Waits.TOO_FEW_GPUS, Waits.GPU_TOO_SMALL),
    Do.SELECTOR: (Waits.NO_GPU_SELECTED,),
    Do.GPU: (Waits.NO_USABLE_GPU,),
    Do.CAPACITY: (
        *(Waits.MEMORY, Waits.CORE, Waits.MEMORY_AND_CORE),
        *(Waits.GPUS, Waits.SCOPE, Waits.TOGETHER),
    ),
}
WAITING: Final = {reason: do for do, reasons in _BY_WAIT.items() for reason in reasons}

_BY_REMEDY: Final = {
    Do.POD: (
        *(Refused.PROVIDER_UNKNOWN, Refused.COMPUTE_POLICY_INVALID, Refused.GRANT_FOREIGN),
        *(Refused.MOUNT_COLLISION, Refused.ENV_TWICE, Refused.RUNTIME_SANDBOXED),
        *(Refused.PRIVILEGED, Refused.CAPABILITY, Refused.GPU_GIVEN, Refused.ENV_AUDITS),
        *(Refused.ENV_PRELOADS, Refused.HOST_VOLUME, Refused.RESTORED, Refused.HANDLER_UNKNOWN),
        *(Refused.IDENTITY_INVALID, Refused.VIEW_DIFFERS),
    ),
    Do.RESCHEDULE: (
        *(Refused.ALLOCATION_MALFORMED, Refused.GRANTS_MALFORMED, Refused.GRANTS_ALONE),
        *(Refused.TOO_MANY_GPUS, Refused.GPU_UNKNOWN, Refused.GPU_UNHEALTHY),
        *(Refused.GPU_MISMATCH, Refused.GPU_TWICE, Refused.MEMORY_MISSING),
        *(Refused.MEMORY_OUT_OF_RANGE, Refused.CORE_OUT_OF_RANGE, Refused.GRANT_NOT_ALLOCATED),
        *(Refused.GRANT_OVER_ALLOCATION, Refused.GPU_WHOLE, Refused.GRANT_OVERFILLS),
        *(Refused.GRANT_UNCONFIRMED, Refused.NOT_ADJUSTED),
    ),
    Do.RETRY: (
        *(Refused.ALLOCATION_FULL, Refused.GPU_FULL, Refused.GPU_MODE_UNKNOWN),
        *(Refused.SHORTAGE, Refused.TOO_SLOW),
    ),
    Do.IMAGE: (
        *(Refused.IMAGE_PRELOAD, Refused.IMAGE_PRELOAD_LONG, Refused.IMAGE_PATH),
        Refused.LIMIT_NOT_ENFORCEABLE,
    ),
    Do.NODE: (
        *(Refused.GPU_OF_DRA, Refused.NOT_FORWARDED, Refused.CDI_CONFLICT, Refused.SELINUX),
        *(Refused.ADJUSTMENT_LOST, Refused.GPU_FOREIGN),
    ),
    Do.DOCTOR: (
        *(Refused.GPUS_UNKNOWN, Refused.CDI_MISSING, Refused.CDI_UNUSABLE, Refused.LIBRARY_MISSING),
        *(Refused.ROOTFS_UNKNOWN, Refused.FILES_FAILED),
    ),
}
REFUSED: Final[Mapping[Refused, Do]] = {
    reason: do for do, reasons in _BY_REMEDY.items() for reason in reasons
}

POLICIES: Final[Mapping[str, Do]] = {
    "gpuslice-agents": Do.OPERATOR,
    "gpuslice-allocations": Do.POD,
    "gpuslice-dialects": Do.POD,
    "gpuslice-environment": Do.POD,
    "gpuslice-hami": Do.POD,
    "gpuslice-kai": Do.POD,
    "gpuslice-quotas": Do.POD,
    "gpuslice-requests": Do.POD,
    "gpuslice-resource-names": Do.POD,
    "gpuslice-scheduler-names": Do.POD,
    "gpuslice-volcano": Do.POD,
    "gpuslice-writer": Do.WAIT,
}
"""By admission policy."""

EVENTS: Final[Mapping[str, Do]] = {
    names.EVENT_GPU_FAILED: Do.RESCHEDULE,
    names.EVENT_GRANT_REFUSED: Do.RESCHEDULE,
    names.EVENT_GRANT_UNCONFIRMED: Do.DOCTOR,
    names.EVENT_LIMIT_NOT_IN_PLACE: Do.RESCHEDULE,
    names.EVENT_WITHOUT_GPU: Do.POD,
    names.EVENT_LIMIT_NOT_ENFORCEABLE: Do.IMAGE,
    names.EVENT_CAPABILITIES_CUT: Do.OPERATOR,
    events.POD_PROBLEM: Do.POD,
    events.POD_NOTICE: Do.POD,
    events.NODE_PROBLEM: Do.AGENT,
    events.SECOND_INSTALLATION: Do.OPERATOR,
}
"""By the reason of an Event that a component writes."""

SLOW: Final[Mapping[Policy, Do]] = {
    Policy.FAIR: Do.CORE,
    Policy.CAPPED: Do.FAIR,
    Policy.TURNS: Do.FAIR,
    Policy.BACKGROUND: Do.FAIR,
}
"""By the compute policy of a running pod that shares its GPU."""

ANSWERS: Final[Mapping[str, Do | None]] = {
    refusals.CONTAINER_REFUSED: None,
    refusals.DECIDES_LATE: Do.RETRY,
    refusals.FAILED: Do.LOG,
}
"""By template of the agent's answer to the runtime. None: REFUSED has the remedy."""


def pattern(template: str) -> re.Pattern[str]:
    """Return the pattern of all texts of a template with fields in braces."""
    parts = Formatter().parse(template)
    return re.compile(
        "".join(re.escape(text) + ".*?" * (name is not None) for text, name, *_ in parts)
    )


def _fixed(reason: Refused) -> int:
    return sum(len(text) for text, *_ in Formatter().parse(reason.value))


_PATTERNS: Final = {
    reason: pattern(reason.value) for reason in sorted(Refused, key=_fixed, reverse=True)
}
"""The most specific first: SELINUX consists of a field alone, and matches a text that was cut."""


def of_answer(message: str) -> tuple[str, Do] | None:
    """Return the agent's answer in a message of the runtime, and the remedy. None: it has none."""
    for template, do in ANSWERS.items():
        if found := pattern(template).search(message):
            if do is not None:
                return message[found.start() :], do
            text = message[found.end() :]
            reason = next(each for each, known in _PATTERNS.items() if known.match(text))
            return message[found.start() :], REFUSED[reason]
    return None


def of_denial(message: str) -> tuple[str, Do] | None:
    """Return the text of an admission policy in a message of the API server, and the remedy."""
    found = re.search(r"ValidatingAdmissionPolicy '([^']*)'.*? denied request: (.*)", message, re.S)
    do = POLICIES.get(found[1]) if found else None
    return (found[2], do) if found and do else None
