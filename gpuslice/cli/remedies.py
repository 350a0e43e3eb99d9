"""What to do about each reason for which a pod waits, is refused or is slow. Pure tables.

Tests compare the keys with the components' own enumerations, so a new reason needs an entry here.
The reasons' texts stay in their modules.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum, StrEnum
from string import Formatter
from typing import Final, TypeVar

from gpuslice.cli.queue_state import Held
from gpuslice.contract import names
from gpuslice.contract.grant_file import Policy
from nri_plugin.policy import refusals
from nri_plugin.policy.refusals import Reason as Refused
from scheduler import events
from scheduler.core.reasons import Reason as Waits

_PODS: Final = f"-n {names.NAMESPACE} get pods -o wide -l {names.LABEL_NAME}"
_AGENTS: Final = f"{_PODS}={names.AGENT}"


class Do(StrEnum):
    """Instructions. Fields: pod, namespace, node."""

    ADD_NODE = "add a node with such GPUs, or change what the pod requests"
    AGENT = f"find the node's agent, and its log: kubectl {_AGENTS}"
    BYPASSED = "find the named program, which escapes the limit, and recreate the pod without it"
    CAPACITY = "request less, wait until another pod of the node ends, or add a node"
    CLAIM = (
        "see what is free (gpuslice top); request less, wait until another pod ends, or add a node"
    )
    CORE = f"request more {names.RESOURCE_CORE}, or place the pod beside fewer pods"
    CRITERIA = "change what kube-scheduler names above: other requests, selectors or taints"
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
    KUEUE = "see what Kueue says: kubectl -n {namespace} describe workloads"
    LOG = "report the defect with the log of the agent on node {node}: kubectl " + _AGENTS
    MANIFEST = "place its manifest without creating it: gpuslice simulate --from-cluster -f FILE"
    NAMED = "change what the reason names, for example the quota of the namespace"
    NODE = "have the operator change the node as the reason says"
    NOTHING = "nothing: gpuslice does not affect this pod"
    OPERATOR = "have the operator of gpuslice change what the reason names"
    PARTITION = f"request one GPU, or remove {names.LABEL_PARTITION_POLICY} from the node"
    POD = "change the named field in the pod's manifest, and create the pod again"
    PREVIOUS = "see why it ended: kubectl -n {namespace} logs --previous {pod}"
    PROFILE = "profile the program: gpuslice hardly delays it"
    QUEUE = "request less, or wait until pods of the named queue end"
    QUOTA = (
        "wait for a GPU with room, or give the quota back: kubectl -n {namespace} delete pod {pod}"
        " (scale its workload down first)"
    )
    RESCHEDULE = "kubectl -n {namespace} delete pod {pod}; create it again if it has no controller"
    RIGHTS = f"have the operator give you the ClusterRole and the Role {names.VIEWER}"
    RETRY = "wait: the kubelet retries until capacity is free"
    SCHEDULER = f"find the scheduler's pods, and their log: kubectl {_PODS}=gpuslice-scheduler"
    SELECTOR = "change the pod's GPU selector, or add a node with such GPUs"
    TEMPLATES = f"find what makes its claim's template: kubectl {_PODS}={names.CLAIM_TEMPLATES}"
    WAIT = "wait: kube-scheduler tries the pod again within minutes"


_Reason = TypeVar("_Reason", bound=Enum)


def _by_reason(reasons: type[_Reason], named: Mapping[Do, str]) -> Mapping[_Reason, Do]:
    return {reasons[name]: do for do, text in named.items() for name in text.split()}


WAITING: Final = _by_reason(
    Waits,
    {
        Do.CRITERIA: "FITS",
        Do.SCHEDULER: "NODE_UNKNOWN LEASES_LOST",
        Do.AGENT: "NO_DEVICE DEVICE_STALE DEVICE_UNREADABLE AGENT_MISSING AGENT_LEASE_EXPIRED",
        Do.DOCTOR: "AGENT_NOT_READY",
        Do.ISOLATES: "NOT_ISOLATING",
        Do.PARTITION: "PARTITIONED",
        Do.ADD_NODE: "TOO_FEW_GPUS GPU_TOO_SMALL",
        Do.SELECTOR: "NO_GPU_SELECTED",
        Do.GPU: "NO_USABLE_GPU",
        Do.CAPACITY: "MEMORY CORE MEMORY_AND_CORE GPUS SCOPE TOGETHER",
    },
)
REFUSED: Final = _by_reason(
    Refused,
    {
        Do.POD: """PROVIDER_UNKNOWN COMPUTE_POLICY_INVALID GRANT_FOREIGN MOUNT_COLLISION ENV_TWICE
            RUNTIME_SANDBOXED PRIVILEGED CAPABILITY GPU_GIVEN ENV_AUDITS ENV_PRELOADS HOST_VOLUME
            RESTORED HANDLER_UNKNOWN IDENTITY_INVALID VIEW_DIFFERS CLAIM_INVALID SHARE_IN_USE""",
        Do.RESCHEDULE: """ALLOCATION_MALFORMED GRANTS_MALFORMED GRANTS_ALONE TOO_MANY_GPUS
            GPU_UNKNOWN GPU_UNHEALTHY GPU_MISMATCH GPU_TWICE MEMORY_MISSING MEMORY_OUT_OF_RANGE
            CORE_OUT_OF_RANGE GRANT_NOT_ALLOCATED GRANT_OVER_ALLOCATION GPU_WHOLE GRANT_OVERFILLS
            GRANT_UNCONFIRMED NOT_ADJUSTED CLAIM_NOT_PREPARED CLAIMS_ONLY""",
        Do.RETRY: "ALLOCATION_FULL GPU_FULL GPU_MODE_UNKNOWN SHORTAGE TOO_SLOW",
        Do.IMAGE: "IMAGE_PRELOAD IMAGE_PRELOAD_LONG IMAGE_PATH LIMIT_NOT_ENFORCEABLE",
        Do.NODE: "GPU_OF_DRA NOT_FORWARDED CDI_CONFLICT SELINUX ADJUSTMENT_LOST GPU_FOREIGN"
        " CLAIMS_NOT_SERVED",
        Do.DOCTOR: """GPUS_UNKNOWN CDI_MISSING CDI_UNUSABLE LIBRARY_MISSING ROOTFS_UNKNOWN
            FILES_FAILED DRIVER_LIMIT""",
    },
)
_POLICIES: Final = {
    Do.OPERATOR: "agents",
    Do.POD: "allocations claims dialects environment hami kai queues quotas requests"
    " resource-names scheduler-names volcano",
    Do.WAIT: "writer",
}
POLICIES: Final = {f"gpuslice-{key}": do for do, keys in _POLICIES.items() for key in keys.split()}
"""By admission policy."""

EVENTS: Final[Mapping[str, Do]] = {
    names.EVENT_GPU_FAILED: Do.RESCHEDULE,
    names.EVENT_GRANT_REFUSED: Do.RESCHEDULE,
    names.EVENT_GRANT_UNCONFIRMED: Do.DOCTOR,
    names.EVENT_LIMIT_NOT_IN_PLACE: Do.RESCHEDULE,
    names.EVENT_WITHOUT_GPU: Do.POD,
    names.EVENT_LIMIT_NOT_ENFORCEABLE: Do.IMAGE,
    names.EVENT_LIMIT_BYPASSED: Do.BYPASSED,
    names.EVENT_DRIVER_LIMIT_NOT_SET: Do.DOCTOR,
    names.EVENT_CAPABILITIES_CUT: Do.OPERATOR,
    names.EVENT_FRONT_END_WAITS: Do.OPERATOR,
    events.POD_PROBLEM: Do.POD,
    events.POD_NOTICE: Do.POD,
    events.NODE_PROBLEM: Do.AGENT,
    events.SECOND_INSTALLATION: Do.OPERATOR,
    names.EVENT_QUEUE_WAITING: Do.QUEUE,
    names.EVENT_QUEUE_UNSERVED: Do.POD,
    names.EVENT_QUEUE_UNPLACEABLE: Do.QUOTA,
}
"""By the reason of an Event that a component writes."""

HELD: Final[Mapping[Held, Do]] = {
    Held.QUOTA: Do.QUEUE,
    Held.UNSERVED: Do.POD,
    Held.STOPPED: Do.OPERATOR,
    Held.FOREIGN: Do.KUEUE,
    Held.ADMITTED: Do.QUOTA,
}
"""By what a pod of a queue waits for."""

SLOW: Final = {each: Do.CORE if each is Policy.FAIR else Do.FAIR for each in Policy}
"""By the compute policy of a running pod that shares its GPU."""

ANSWERS: Final[Mapping[str, Do | None]] = {
    refusals.CONTAINER_REFUSED: None,
    refusals.CLAIM_REFUSED: None,
    refusals.DECIDES_LATE: Do.RETRY,
    refusals.FAILED: Do.LOG,
}
"""By template of the agent's answer to the runtime. None: REFUSED has the remedy."""


def pattern(template: str) -> re.Pattern[str]:
    """Return the pattern of all texts of a template with fields in braces."""
    parts = Formatter().parse(template)
    texts = (re.escape(text) + ".*?" * (name is not None) for text, name, *_ in parts)
    return re.compile("".join(texts))


def _fixed(reason: Refused) -> int:
    return sum(len(text) for text, *_ in Formatter().parse(reason.value))


_PATTERNS: Final = [(each, pattern(each.value)) for each in sorted(Refused, key=_fixed)[::-1]]
"""The most specific first: SELINUX consists of a field alone, and matches a text that was cut."""


def of_answer(message: str) -> tuple[str, Do] | None:
    """Return the agent's answer in a message of the runtime, and the remedy. None: it has none."""
    for template, do in ANSWERS.items():
        if found := pattern(template).search(message):
            rest = message[found.end() :]
            refused = (REFUSED[reason] for reason, known in _PATTERNS if known.match(rest))
            return message[found.start() :], do or next(refused)
    return None


def of_denial(message: str) -> tuple[str, Do] | None:
    """Return the text of an admission policy in a message of the API server, and the remedy."""
    found = re.search(r"ValidatingAdmissionPolicy '([^']*)'.*? denied request: (.*)", message, re.S)
    do = POLICIES.get(found[1]) if found else None
    return (found[2], do) if found and do else None
