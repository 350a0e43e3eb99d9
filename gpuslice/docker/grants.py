"""A container's grant on a Docker host, as text and as a CDI spec.

Pure. The text is the value of a label of the container and a file on disk, so that the grant can be
made again after a restart of the machine. docs/docker.md describes both.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from types import MappingProxyType
from typing import Any, Final

from gpuslice.contract import names
from gpuslice.contract.grant_file import Policy
from gpuslice.contract.overhead import CODE_BYTES
from nri_plugin.policy.model import Claim, Device, Hook, HookStage, Mount, Pod, Share
from nri_plugin.policy.plan import ContainerPlan

_VERSION: Final = 1
_CDI_VERSION: Final = "0.6.0"
_WHOLE_CORE_PERCENT: Final = 100
_NAMESPACE: Final = "docker"
_KEY: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_NO_SIZES: Final[Mapping[str, int]] = MappingProxyType({})


_CHECK: Final = """\
while [ $# -gt 1 ]; do
  [ "$(stat -c %d:%i ".$1")" = "$2" ] || {
    echo "gpuslice: $1 is not the file of the limit: another mount or a link hides it" >&2
    exit 1
  }
  shift 2
done
"""
"""A hook that runs before each start, in the container's root directory, after all mounts. Docker
keeps a container's files, so a link that a program has made there may divert a user's mount to our
paths, which no check of the paths can see. The hook may be in another user namespace, where it
cannot open the host's files. Therefore it compares numbers."""


class GrantError(ValueError):
    """The text of a grant is unreadable. The message names the field."""


@dataclass(frozen=True, slots=True)
class Grant:
    """What one container gets. key: names its files. name: the container's name. capabilities:
    NVIDIA_DRIVER_CAPABILITIES of the container, "" if it is not set. context_bytes: the charge for
    a context by GPU UUID. code_bytes, managed_free: as in grant_file.Gpu."""

    key: str
    name: str
    shares: Sequence[Share]
    policy: Policy = Policy.FAIR
    capabilities: str = ""
    context_bytes: Mapping[str, int] = field(default_factory=lambda: _NO_SIZES)
    code_bytes: int = CODE_BYTES
    managed_free: bool = False

    @property
    def pod(self) -> Pod:
        """Return the container in the place of a pod, as the node agent's parts expect it."""
        return Pod(uid=self.key, namespace=_NAMESPACE, name=self.name)

    @property
    def claim(self) -> Claim:
        return Claim(self.shares, allocated=self.shares, policy=self.policy)


def encode(grant: Grant) -> str:
    """Return the grant's text. A share without a request of compute has `core` 0."""
    gpus = [
        {
            "id": share.uuid,
            "minor": share.minor,
            "memory": share.memory_bytes,
            "core": 0 if share.uncapped else share.core_percent,
            "context": grant.context_bytes.get(share.uuid, names.CONTEXT_BYTES_ASSUMED),
        }
        for share in grant.shares
    ]
    document = {
        "v": _VERSION,
        "name": grant.name,
        "gpus": gpus,
        "policy": grant.policy.value,
        "capabilities": grant.capabilities,
        "code": grant.code_bytes,
        "managedFree": grant.managed_free,
    }
    return json.dumps(document, separators=(",", ":"))


def decode(key: str, text: str) -> Grant:
    """Return the grant of a text. Raises GrantError."""
    try:
        document = json.loads(text)
        if document["v"] != _VERSION:
            raise GrantError(f"v: invalid value {document['v']!r}: must be {_VERSION}")
        gpus = document["gpus"]
        return Grant(
            key,
            str(document["name"]),
            tuple(_share(gpu) for gpu in gpus),
            Policy(document["policy"]),
            str(document["capabilities"]),
            {str(gpu["id"]): int(gpu["context"]) for gpu in gpus},
            int(document["code"]),
            bool(document["managedFree"]),
        )
    except GrantError:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise GrantError(f"the grant of {key} is unreadable: {error!r}") from error


def _share(gpu: Mapping[str, Any]) -> Share:
    core = int(gpu["core"])
    uncapped = core == 0
    percent = _WHOLE_CORE_PERCENT if uncapped else core
    return Share(str(gpu["id"]), int(gpu["minor"]), int(gpu["memory"]), percent, uncapped)


def is_key(text: str) -> bool:
    """Return whether a text, for example a label's, is a valid key. A key names files."""
    return _KEY.fullmatch(text) is not None


def device_name(key: str) -> str:
    """Return the qualified name of the grant's CDI device."""
    return f"{names.CDI_KIND_GRANT}={key}"


def spec_file(key: str) -> str:
    """Return the file name of the grant's CDI spec."""
    return f"{names.CDI_KIND_GRANT.replace('/', '-')}-{key}.json"


def spec(plan: ContainerPlan, identities: Mapping[str, str]) -> str:
    """Return the CDI spec that gives a container all of the plan. identities: DEVICE:INODE of each
    file on which the limit depends, by its path in the container."""
    check = Hook(
        HookStage.CREATE_CONTAINER,
        "/bin/sh",
        ("sh", "-c", _CHECK, "gpuslice", *chain(*sorted(identities.items()))),
        ("PATH=/usr/sbin:/usr/bin:/sbin:/bin",),
    )
    edits = {
        "env": [f"{key}={value}" for key, value in plan.env],
        "deviceNodes": [_node(device) for device in plan.devices],
        "mounts": [_mount(mount) for mount in plan.mounts],
        "hooks": [_hook(hook) for hook in (*plan.hooks, check)],
    }
    document = {
        "cdiVersion": _CDI_VERSION,
        "kind": names.CDI_KIND_GRANT,
        "devices": [{"name": plan.key, "containerEdits": edits}],
    }
    return json.dumps(document, indent=1)


def _node(device: Device) -> Mapping[str, Any]:
    node: dict[str, Any] = {
        "path": device.path,
        "type": device.type,
        "major": device.major,
        "minor": device.minor,
    }
    more = {"fileMode": device.file_mode, "uid": device.uid, "gid": device.gid}
    return node | {key: value for key, value in more.items() if value is not None}


def _mount(mount: Mount) -> Mapping[str, Any]:
    return {
        "hostPath": mount.source,
        "containerPath": mount.destination,
        "options": [*mount.options],
        "type": mount.type,
    }


def _hook(hook: Hook) -> Mapping[str, Any]:
    made: dict[str, Any] = {
        "hookName": hook.stage.value,
        "path": hook.path,
        "args": [*hook.args],
        "env": [*hook.env],
    }
    return made if hook.timeout_s is None else made | {"timeout": hook.timeout_s}
