"""The node agent's errors and the reasons for its refusals.

    AgentError
      Refused           a container may not be created or started as requested; has a Refusal
      FilesError        the run directory cannot be prepared (this host's fault)
      StoreError        the library cannot be published (this host's fault)
      ChildError        NVML, CUDA or nvidia-ctk gave no usable answer (this host's, retryable)

A reason's value is its text; the fields in braces are filled in where it is raised. The texts name
the field, the value and the allowed values. `kubectl describe pod` shows them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from contract import names

_ALLOCATION = f"annotation {names.ANNOTATION_DEVICE_ALLOCATED}"
_GRANTS = f"annotation {names.ANNOTATION_GRANTS}"
_LABEL = f"label {names.LABEL_ISOLATION_PROVIDER}"


class Reason(Enum):
    """Why a container is refused."""

    PROVIDER_UNKNOWN = _LABEL + ": {value!r}, allowed is 'hami-core'"
    ALLOCATION_MALFORMED = _ALLOCATION + ": {problem}"
    GRANTS_MALFORMED = _GRANTS + ": {problem}"
    GRANTS_ALONE = _GRANTS + " is there, but " + _ALLOCATION + " grants no GPU"
    TOO_MANY_GPUS = _ALLOCATION + f": {{count}} GPUs, at most {names.MAX_GPUS} are allowed"
    GPU_UNKNOWN = "{where}: {gpu} is not on this node (it has: {known})"
    GPUS_UNKNOWN = "this node's GPUs are not known: {problem}"
    GPU_MISMATCH = (
        "{where}: id {uuid} is the GPU with minor {actual} on this node, not minor {minor}"
    )
    GPU_TWICE = "{where}: {uuid} is listed twice"
    MEMORY_MISSING = (
        "{where}: neither "
        + names.RESOURCE_MEMORY
        + " nor "
        + names.RESOURCE_MEMORY_RATIO
        + " is there; one of them must say how much memory is granted"
    )
    MEMORY_OUT_OF_RANGE = (
        "{where}: {value} bytes of memory, allowed are 1 to {total} (the whole GPU)"
    )
    CORE_OUT_OF_RANGE = "{where}: core {value}, allowed is 0 to 100 percent"
    GRANT_NOT_ALLOCATED = _GRANTS + ": {where}: {gpu} is not in the pod's allocation"
    GRANT_OVER_ALLOCATION = (
        _GRANTS + ": {where}.{what}: {value} of {uuid}, the allocation has {allowed}"
    )
    ALLOCATION_FULL = (
        _GRANTS + ": containers.{container}: {asked} {unit} of {uuid}, but of the pod's allocation"
        " {left} of {total} are left; its containers that have not ended hold: {held}"
    )
    GPU_FULL = (
        "{uuid} has no room for it: it asks for {asked} {unit}, {left} of {total} are left;"
        " granted are: {held}"
    )
    GRANT_OVERFILLS = (
        "{uuid} was full when the pod was bound: it was granted {asked} {unit}, {left} of"
        " {total} were left; pods that were bound before it hold: {held}"
    )
    GRANT_UNCONFIRMED = "the API server does not confirm what the pod was granted: {problem}"
    GRANT_FOREIGN = "what the pod was granted was written by no scheduler: {problem}"
    IDENTITY_INVALID = "{what} {value!r} cannot name a directory"
    CDI_MISSING = (
        f"no CDI device {names.CDI_KIND}={{uuid}} in the CDI directories{{hint}}; the GPU is"
        " brought to containers by its CDI spec alone"
    )
    CDI_UNUSABLE = f"CDI device {names.CDI_KIND}={{uuid}} of {{file}}: {{problem}}"
    CDI_BY_NAME = "CDI devices are asked for by name on this node, but {problem}"
    NOT_FORWARDED = (
        "strict mode: no CDI spec of the container's GPUs mounts a file of {soname}, in whose"
        " place a forwarder could be put"
    )
    CDI_CONFLICT = "the CDI specs of the container's GPUs disagree about {what}"
    LIBRARY_MISSING = "the library is missing on this node: {problem}"
    MOUNT_COLLISION = (
        "the container mounts {mount}, which would hide or move {ours}; mount it elsewhere"
    )
    ENV_TWICE = (
        "the environment has {key} {count} times (image and pod together): the later one would"
        " win over ours"
    )
    NOT_ADJUSTED = "the runtime did not ask this agent for the container's adjustment"
    ADJUSTMENT_LOST = "another NRI plugin changed our adjustment: {what}"
    GPU_FOREIGN = (
        "NRI plugin {plugin} injected a GPU by {what} into this container; a container with a GPU"
        " share gets GPUs from gpuslice alone, with their limit"
    )
    HANDLER_UNKNOWN = (
        "runtimeClassName: its handler {handler!r} is not known to run containers on this node's"
        " kernel, where alone a share of a GPU can be limited; allowed are the default, {allowed},"
        " and what the agent's --runtime-handler adds"
    )
    PRIVILEGED = (
        "securityContext.privileged: true lets the container use every GPU of the node, whatever"
        " it is granted; allowed with a share of a GPU is false"
    )
    CAPABILITY = (
        "securityContext.capabilities: with {name} the container {does}; not allowed with a share"
        " of a GPU (the operator may allow it: --allow-capability)"
    )
    GPU_GIVEN = (
        "the container has a GPU already, which is not ours to limit ({given}): take it away"
        " (nvidia.com/gpu in its resources), or the grant"
    )
    ENV_AUDITS = (
        "environment {key}={value!r} names a library that decides which others are loaded, the one"
        " that keeps the limit too; allowed with a share of a GPU is to leave it out"
    )
    ENV_PRELOADS = (
        "environment {key}={value!r} puts {library} before the library that keeps the limit;"
        " allowed with a share of a GPU is any library but {names}"
    )
    HOST_VOLUME = (
        "mount {mount} shows the host's {source}, or part of {place}, where limits are kept;"
        " allowed in a pod with a share of a GPU are volumes of other places"
    )
    RESTORED = (
        "mount {mount} shows files of another container's grant ({source}), as after a restore from"
        " a checkpoint: a share of a GPU cannot be restored, make the container anew"
    )
    IMAGE_PRELOAD = (
        "the image brings its own {place} ({what}): allowed is a regular file that names a few"
        " libraries, which are then loaded after ours"
    )
    IMAGE_PRELOAD_LONG = (
        "the image brings its own {place}, too long: with ours it has {size} bytes, allowed are"
        " {most}"
    )
    LIMIT_NOT_ENFORCEABLE = (
        "no limit reaches the entry point: {problem}; allowed by this node's policy"
        " (--unenforceable=refuse) are programs that a preload reaches"
    )
    IMAGE_PATH = "the image has {what} at {path}: the limit is mounted there, build it without"
    ROOTFS_UNKNOWN = "the container's root file system cannot be examined: {problem}"
    VIEW_DIFFERS = "inside the container {path} is not the file that this agent mounted: {problem}"
    FILES_FAILED = "the container's files cannot be made on this node: {problem}"
    TOO_SLOW = "this node took too long to {what}; it will be tried again"


@dataclass(frozen=True, slots=True)
class Refusal:
    """A reason with its fields filled in."""

    reason: Reason
    fields: Mapping[str, object] = field(default_factory=dict)

    @property
    def text(self) -> str:
        return self.reason.value.format(**self.fields)


def refuse(reason: Reason, **fields: object) -> Refusal:
    return Refusal(reason, fields)


class AgentError(Exception):
    """Base of this component's errors."""


class Refused(AgentError):
    """Ends the current operation with a refusal."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.text)
        self.refusal = refusal


def refused(reason: Reason, **fields: object) -> Refused:
    return Refused(Refusal(reason, fields))


class FilesError(AgentError):
    """The run directory cannot be prepared or cleaned; the text states the cause."""


class StoreError(AgentError):
    """The library cannot be published; the text states what is missing."""


class ChildError(AgentError):
    """A child that queries the driver failed, timed out, or gave no usable answer."""
