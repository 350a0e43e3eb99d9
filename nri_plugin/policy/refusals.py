"""The agent's errors, and the reasons for which it refuses a container.

A reason's value is a text with fields in braces. The caller of `refuse` gives the fields' values.
Each text names the cause and what to do. If a value is invalid, the text has that value and the
allowed values. `kubectl describe pod` shows the text.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from gpuslice.contract import names
from gpuslice.contract.grant_file import POLICIES_TEXT

CONTAINER_REFUSED: Final = 'gpuslice refuses container "{container}" of pod {pod}: {text}'
CLAIM_REFUSED: Final = "gpuslice does not prepare claim {claim}: {text}"
DECIDES_LATE: Final = "gpuslice did not decide {what} within {budget_s:.3g} s"
FAILED: Final = "gpuslice failed at {what}: {error}"
"""The agent's answers to the runtime, and to the kubelet, that keep a container from starting."""

_ALLOCATION: Final = f"annotation {names.ANNOTATION_DEVICE_ALLOCATED}"
_GRANTS: Final = f"annotation {names.ANNOTATION_GRANTS}"
_LABEL: Final = f"label {names.LABEL_ISOLATION_PROVIDER}"
RESCHEDULE: Final = "; delete the pod to reschedule it"
_RETRIES: Final = "; the kubelet retries"
_DOCTOR: Final = "; run the doctor on the node (python -m nri_plugin doctor)"


class Reason(Enum):
    PROVIDER_UNKNOWN = (
        _LABEL + ": invalid value {value!r}: must be 'hami-core'; recreate the pod with that value,"
        " or without the label"
    )
    ALLOCATION_MALFORMED = _ALLOCATION + ": {problem}" + RESCHEDULE
    GRANTS_MALFORMED = _GRANTS + ": {problem}" + RESCHEDULE
    GRANTS_ALONE = _GRANTS + ": must be unset where " + _ALLOCATION + " has no GPU" + RESCHEDULE
    TOO_MANY_GPUS = (
        _ALLOCATION
        + f": invalid value {{count}} GPUs: must be at most {names.MAX_GPUS}"
        + RESCHEDULE
    )
    GPU_UNKNOWN = "{where}: invalid value {gpu}: must be a GPU of this node ({known})" + RESCHEDULE
    GPU_UNHEALTHY = "{where}: invalid value {uuid}: must be a healthy GPU: {problem}" + RESCHEDULE
    GPUS_UNKNOWN = "the agent cannot list this node's GPUs: {problem}" + _DOCTOR
    GPU_MISMATCH = (
        "{where}.minor: invalid value {minor}: must be {actual}, the minor of {uuid} on this node"
        + RESCHEDULE
    )
    GPU_TWICE = "{where}.id: duplicate value {uuid}: must be listed once" + RESCHEDULE
    MEMORY_MISSING = (
        "{where}.resources: required value: must have "
        + names.RESOURCE_MEMORY
        + " or "
        + names.RESOURCE_MEMORY_RATIO
        + RESCHEDULE
    )
    MEMORY_OUT_OF_RANGE = (
        "{where}: invalid value {value} bytes of memory: must be 1 to {total} (the whole GPU)"
        + RESCHEDULE
    )
    CORE_OUT_OF_RANGE = (
        "{where}: invalid value {value} percent of core: must be 0 to 100" + RESCHEDULE
    )
    COMPUTE_POLICY_INVALID = (
        "metadata.annotations[{key}]: invalid value {value!r}: must be "
        + POLICIES_TEXT
        + "; recreate the pod"
    )
    GRANT_NOT_ALLOCATED = (
        _GRANTS
        + ": {where}: invalid value {gpu}: must be a GPU of the pod's allocation"
        + RESCHEDULE
    )
    GRANT_OVER_ALLOCATION = (
        _GRANTS + ": {where}.{what}: invalid value {value}: must be at most {allowed}, the pod's"
        " allocation of {uuid}" + RESCHEDULE
    )
    ALLOCATION_FULL = (
        _GRANTS + ": containers.{container}: invalid value {requested} {unit} of {uuid}: must be at"
        " most {left}, the free part of the pod's allocation of {total}; the kubelet retries;"
        " granted to running containers: {held}"
    )
    GPU_FULL = (
        "{uuid}: insufficient free capacity: {requested} {unit} requested, {left} of {total} free;"
        " the kubelet retries; granted: {held}"
    )
    GPU_WHOLE = (
        "GPU of the share: invalid value {uuid}: must be a shared GPU; it is assigned whole"
        f" ({names.RESOURCE_NVIDIA_GPU}) to {{pod}}" + RESCHEDULE
    )
    GPU_MODE_UNKNOWN = (
        "the agent cannot list the GPUs that are assigned whole to pods: {problem}" + _RETRIES
    )
    GPU_OF_DRA = (
        "GPU of the share: invalid value {uuid}: must be a GPU that only gpuslice allocates, but"
        " NVIDIA's DRA driver serves this node ({sign}); keep one of the two off the node"
        + RESCHEDULE
    )
    CLAIM_INVALID = "{where}: {problem}"
    CLAIM_NOT_PREPARED = (
        "CDI device {device}: invalid value: must be of a claim that this agent has prepared for"
        " the pod; delete the pod to recreate it"
    )
    CLAIMS_NOT_SERVED = "claims are not served on this node now: {problem}" + _RETRIES
    SHARE_IN_USE = (
        "resources.claims: a share of the container is in use by {holder} together with other"
        " shares: containers that run at the same time must have equal shares, or none in common;"
        " the kubelet retries"
    )
    CLAIMS_ONLY = (
        "GPU grant: must be a ResourceClaim: the node has the label "
        f"{names.LABEL_FRONT_END}={names.FRONT_END_CLAIMS}" + RESCHEDULE
    )
    GRANT_OVERFILLS = (
        "{uuid}: insufficient free capacity when the pod was bound: {requested} {unit} granted,"
        " {left} of {total} free; granted to pods bound before it: {held}" + RESCHEDULE
    )
    GRANT_UNCONFIRMED = "GPU grant: must be that of the pod at the API server: {problem}"
    GRANT_FOREIGN = (
        "GPU grant: must be written by a scheduler: {problem}; recreate the pod without GPU"
        " annotations and without spec.nodeName"
    )
    IDENTITY_INVALID = (
        "{what}: invalid value {value!r}: must be a valid directory name; create the container"
        " through Kubernetes"
    )
    CDI_MISSING = (
        f"CDI device {names.CDI_KIND}={{uuid}}: not found: must be in a spec of the CDI"
        " directories{hint}; the agent generates one where it can run nvidia-ctk, and its /readyz"
        " says why not"
    )
    CDI_UNUSABLE = (
        "CDI device {device} of {file}: {problem}; the agent generates a usable one where it can"
        " run nvidia-ctk, and its /readyz says why not"
    )
    NOT_FORWARDED = (
        "strict mode: no CDI spec of the container's GPUs mounts a file of {soname} that a"
        " forwarder can replace; generate the spec with nvidia-ctk, or start the agent without"
        " --strict"
    )
    CDI_CONFLICT = (
        "the CDI specs of the container's GPUs define {what} differently: keep one file that"
        " describes all GPUs of the node"
    )
    LIBRARY_MISSING = "the library is missing on this node: {problem}" + _DOCTOR
    MOUNT_COLLISION = (
        "mountPath: invalid value {mount}: must not hide or move {ours}; mount the volume elsewhere"
    )
    ENV_TWICE = (
        "environment {key}: duplicate value ({count} times, image and pod together): must be set at"
        " most once, because the last one overrides the agent's; remove it from the image or"
        " the pod"
    )
    NOT_ADJUSTED = (
        "the container was created without this agent's adjustment; delete the pod to recreate it"
    )
    ADJUSTMENT_LOST = (
        "another NRI plugin changed the agent's adjustment: {what}; exclude the pod from that"
        " plugin, or remove the plugin from this node"
    )
    GPU_FOREIGN = (
        "NRI plugin {plugin} injected a GPU by {what} into this container; a container with a GPU"
        " share must get GPUs from gpuslice only; exclude the pod from that plugin, or remove the"
        " plugin from this node"
    )
    HANDLER_UNKNOWN = (
        "runtimeClassName: invalid value {handler!r}: must be the default, {allowed}, or a"
        " --runtime-handler of the agent: shares can be limited on this node's kernel only;"
        " change it, or have the operator add the handler"
    )
    RUNTIME_SANDBOXED = (
        "runtime: invalid value (a sandbox of its own, such as Kata's: {path} does not exist): must"
        " be runc or crun, because the limit holds on this node's kernel only; give the pod a"
        " RuntimeClass of runc, where the node's default is another"
    )
    SELINUX = "{problem}"
    PRIVILEGED = (
        "securityContext.privileged: invalid value true: must be false in a container with a share"
        " of a GPU, because it gives access to every GPU of the node; set it to false, or request"
        " no share"
    )
    CAPABILITY = (
        "securityContext.capabilities: invalid value {name}: must not be set in a container with a"
        " share of a GPU, because it lets the container {do}; remove it, or have the operator"
        " allow it (--allow-capability of the agent)"
    )
    GPU_GIVEN = (
        "the container already has a GPU without a limit ({given}): remove it (nvidia.com/gpu in"
        " its resources), or the grant"
    )
    ENV_AUDITS = (
        "environment {key}: invalid value {value!r}: must be unset in a container with a share of a"
        " GPU, because an audit library can block the library that enforces the limit; unset it"
    )
    ENV_PRELOADS = (
        "environment {key}: invalid value {value!r}: must not name {library}, which would load"
        " before the library that enforces the limit; remove it"
    )
    HOST_VOLUME = (
        "mount {mount}: invalid value {source}: must not expose {path}, which limits depend on;"
        " mount another volume"
    )
    RESTORED = (
        "mount {mount}: invalid value {source}: must not be another container's grant: a container"
        " with a share of a GPU cannot be restored from a checkpoint; recreate it"
    )
    IMAGE_PRELOAD = (
        "image file {path}: invalid value ({what}): must be a regular file that names a few"
        " libraries; build the image with such a file, or without it"
    )
    IMAGE_PRELOAD_LONG = (
        "image file {path}: invalid value ({size} bytes): must be at most {most} bytes with the"
        " agent's library; name fewer libraries"
    )
    LIMIT_NOT_ENFORCEABLE = (
        "entry point: {problem}: must load the library under --unenforceable=refuse; use a dynamic"
        " program of glibc"
    )
    DRIVER_LIMIT = (
        "the driver's memory limit cannot be set: {problem}: must be set under"
        " --memory-limits=driver" + _RETRIES
    )
    IMAGE_PATH = (
        "image path {path}: invalid value ({what}): must be absent, because the agent mounts the"
        " limit there; build the image without it"
    )
    ROOTFS_UNKNOWN = (
        "the agent cannot examine the container's root file system: {problem}" + _DOCTOR
    )
    VIEW_DIFFERS = (
        "inside the container {path} is not the file that the agent mounted: {problem}; remove the"
        " volume, link or hook that replaces it"
    )
    FILES_FAILED = "the agent cannot create the container's files: {problem}" + _DOCTOR
    SHORTAGE = (
        "the agent has no file descriptors or no memory left: {problem}; raise the limit of its"
        " process or pod" + _RETRIES
    )
    TOO_SLOW = "timeout: the node took too long to {what}" + _RETRIES


@dataclass(frozen=True, slots=True)
class Refusal:
    """A reason with the values of its fields."""

    reason: Reason
    fields: Mapping[str, object] = field(default_factory=dict)

    @property
    def text(self) -> str:
        return self.reason.value.format(**self.fields)


def refuse(reason: Reason, **fields: object) -> Refusal:
    return Refusal(reason, fields)


INVENTORY_DEPENDENT: Final = frozenset(
    {Reason.GPU_UNKNOWN, Reason.GPU_MISMATCH, Reason.MEMORY_OUT_OF_RANGE}
)
"""Refusals that a new query of NVML may change, for example after a GPU was replaced."""


class Refused(Exception):
    """Ends the current operation with a refusal."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.text)
        self.refusal = refusal


def refused(reason: Reason, **fields: object) -> Refused:
    return Refused(Refusal(reason, fields))


class FilesError(Exception):
    """The run directory cannot be prepared or cleaned. The text states the cause."""


class StoreError(Exception):
    """The library cannot be published. The text states what is missing."""


class ChildError(Exception):
    """A child that queries the driver failed, timed out, or gave no usable answer."""


_SHORTAGES: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


def raise_shortage(error: BaseException) -> None:
    """Raise Refused if the error means that the agent lacks descriptors or memory.

    Such an error says nothing about the file that the agent tried to read. It must not be reported
    as a missing file or a wrong configuration. A container with a share is refused, and the kubelet
    retries. A check of the node reports nothing.
    """
    if isinstance(error, OSError) and error.errno in _SHORTAGES:
        raise refused(Reason.SHORTAGE, problem=error) from error


def is_shortage(error: BaseException) -> bool:
    """Whether the error is a refusal by `raise_shortage`."""
    return isinstance(error, Refused) and error.refusal.reason is Reason.SHORTAGE
