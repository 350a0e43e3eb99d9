"""Converts NRI's protobuf messages to the types of model.py, and plans to replies. Pure."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

from gpuslice.contract import names
from nri_plugin.messages import nri_pb2 as nri
from nri_plugin.policy import nvidia
from nri_plugin.policy.merged import CgroupRule, Merged, Owners
from nri_plugin.policy.model import Container, Device, Hook, HookStage, Mount, Pod
from nri_plugin.policy.plan import ContainerPlan
from nri_plugin.policy.recovery import Running

_HOOK_FIELDS = {stage: stage.name.lower() for stage in HookStage}
"""The field of NRI's Hooks message for each stage."""


def pod(message: nri.PodSandbox) -> Pod:
    return Pod(
        uid=message.uid,
        namespace=message.namespace,
        name=message.name,
        labels=dict(message.labels),
        annotations=dict(message.annotations),
        runtime_handler=message.runtime_handler,
    )


def container(message: nri.Container) -> Container:
    return Container(
        id=message.id,
        name=message.name,
        env=tuple(message.env),
        mounts=mounts(message.mounts),
        devices=devices(message.linux.devices),
        cdi_names=tuple(cdi_names(message)),
        privileged=any(_is_everything(rule) for rule in message.linux.resources.devices),
    )


def cdi_names(message: nri.Container) -> Iterator[str]:
    """Yield the CDI names of a container: from the field of NRI 0.10 and later, and from the
    annotations that device plugins set."""
    yield from (device.name for device in message.cdi_devices)
    for key, value in message.annotations.items():
        if key.startswith("cdi.k8s.io/"):
            yield from value.split(",")


def _is_everything(rule: nri.LinuxDeviceCgroup) -> bool:
    """Whether the rule allows all devices. Only privileged containers get it from the runtime."""
    narrowed = rule.type not in ("", "a") or rule.HasField("major") or rule.HasField("minor")
    return rule.allow and not narrowed


def mounts(messages: Iterable[nri.Mount]) -> Sequence[Mount]:
    return tuple(Mount(m.destination, m.source, tuple(m.options), m.type) for m in messages)


def devices(messages: Iterable[nri.LinuxDevice]) -> Sequence[Device]:
    """Convert the devices. Entries that remove a device (a leading "-") are skipped."""
    return tuple(
        Device(m.path, m.type, m.major, m.minor) for m in messages if not m.path.startswith("-")
    )


def _owned(fields: nri.FieldOwners, number: int) -> Mapping[str, str]:
    return dict(fields.compound[number].owners) if number in fields.compound else {}


def is_unchanged(request: nri.ValidateContainerAdjustmentRequest, plan: ContainerPlan) -> bool:
    """Whether the adjustment of all plugins equals our reply. This is so where no other plugin
    adjusts the container. Comparing converted values would take thirty times as long. Both messages
    are normalized, because the runtime adds unknown fields and empty messages."""
    adjust, sent = request.adjust, reply(plan).adjust
    adjust.DiscardUnknownFields()
    for each in (adjust, sent):
        each.hooks.SetInParent()
        each.linux.resources.SetInParent()
    return adjust == sent


def merged(request: nri.ValidateContainerAdjustmentRequest, me: str) -> Merged:
    """Return the adjustment of all plugins with the owner of each part. me: the agent's name."""
    adjust = request.adjust
    fields = request.owners.owners[request.container.id]
    owned = partial(_owned, fields)
    return Merged(
        me,
        env=tuple((m.key, m.value) for m in adjust.env),
        mounts=mounts(adjust.mounts),
        devices=devices(adjust.linux.devices),
        hooks=tuple(
            Hook(stage, hook.path, tuple(hook.args), tuple(hook.env), _value(hook, "timeout"))
            for stage, name in _HOOK_FIELDS.items()
            for hook in getattr(adjust.hooks, name)
        ),
        cdi_names=tuple(device.name for device in adjust.cdi_devices),
        cgroup_rules=tuple(
            CgroupRule(m.type, _value(m, "major"), _value(m, "minor"), m.access)
            for m in adjust.linux.resources.devices
            if m.allow
        ),
        owners=Owners(
            env=owned(nri.FIELD_ENV),
            mounts=owned(nri.FIELD_MOUNTS),
            devices=owned(nri.FIELD_DEVICES),
            cdi_names=owned(nri.FIELD_CDI_DEVICES),
            # The runtime joins all plugins' hooks in one list, and their owners in one text.
            hooks=tuple(fields.simple.get(nri.FIELD_OCI_HOOKS, "").split(",")),
        ),
    )


def _value(message: Any, field: str) -> int | None:
    """Return the number in an optional field. None: the field is not set."""
    return getattr(message, field).value if message.HasField(field) else None


def key_of(message: nri.Container, run_dir: str) -> str | None:
    """Return the name of the directory in `run_dir` that the container has mounted. None: it has
    mounted none. The runtime keeps the mounts, so a restarted agent gets the same result."""
    for mount in message.mounts:
        if mount.destination == names.CONTAINER_DIR:
            parent, key = posixpath.split(posixpath.normpath(mount.source))
            if parent == posixpath.normpath(run_dir):
                return key
    return None


def running(message: nri.Container, known: Pod | None, run_dir: str) -> Running:
    """Convert a container of Synchronize's list. known: its pod. None: the list omits the pod,
    because the runtime does not know its state."""
    labels = message.labels
    unknown = Pod(
        uid=labels.get("io.kubernetes.pod.uid", ""),
        namespace=labels.get("io.kubernetes.pod.namespace", "unknown"),
        name=labels.get("io.kubernetes.pod.name", message.pod_sandbox_id),
    )
    return Running(
        id=message.id,
        name=message.name,
        pod=known or unknown,
        key=key_of(message, run_dir),
        mounts=mounts(message.mounts) if message.state == nri.CONTAINER_RUNNING else (),
        stopped=message.state == nri.CONTAINER_STOPPED,
        cdi_names=tuple(cdi_names(message)),
        waiting=message.state == nri.CONTAINER_CREATED,
        nodes=[
            node.path for node in message.linux.devices if nvidia.is_node(node.path, node.major)
        ],
    )


@lru_cache(maxsize=32)
def reply(plan: ContainerPlan) -> nri.CreateContainerResponse:
    """Convert the plan. The adjustment is built inside the reply, because assigning a message
    copies it. The reply is cached, because the validation compares it next."""
    response = nri.CreateContainerResponse()
    message = response.adjust
    message.mounts.extend(map(_mount, plan.mounts))
    for key, value in plan.env:
        message.env.add(key=key, value=value)
    for device in plan.devices:
        message.linux.devices.append(_device(device))
    for hook in plan.hooks:
        getattr(message.hooks, _HOOK_FIELDS[hook.stage]).append(_hook(hook))
    return response


@lru_cache(maxsize=1024)
def _mount(mount: Mount) -> nri.Mount:
    """Convert a mount. The result is cached, because all containers have the driver's mounts. The
    caller must not change it."""
    return nri.Mount(
        destination=mount.destination, source=mount.source, type=mount.type, options=mount.options
    )


def _device(device: Device) -> nri.LinuxDevice:
    """Convert a device. The runtime itself adds a cgroup rule that allows reading and writing."""
    message = nri.LinuxDevice(
        path=device.path, type=device.type, major=device.major, minor=device.minor
    )
    for field in ("file_mode", "uid", "gid"):
        value = getattr(device, field)
        if value is not None:
            getattr(message, field).value = value
            getattr(message, field).SetInParent()
    return message


def _hook(hook: Hook) -> nri.Hook:
    message = nri.Hook(path=hook.path, args=hook.args, env=hook.env)
    if hook.timeout_s is not None:
        message.timeout.value = hook.timeout_s
    return message
