"""A container's grant on a Docker host, as text and as a CDI spec. Pure.

The text is the value of a label of the container and a file on disk, so that the grant can be made
again after a restart of the machine.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any, Final

from gpuslice.contract import grant_file, names
from nri_plugin.policy.model import Claim, Device, Hook, HookStage, Pod, Share
from nri_plugin.policy.plan import ContainerPlan

_VERSION: Final = 1
_CDI_VERSION: Final = "0.6.0"
_NAMESPACE: Final = "docker"
_KEY: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
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


@dataclass(frozen=True, slots=True)
class Grant:
    """What one container gets. key: names its files. name: the container's first name.
    core_percent: what is booked of each GPU's time, 0 if --core is not set. capabilities:
    NVIDIA_DRIVER_CAPABILITIES of the container, "" if it is not set."""

    key: str
    name: str
    gpus: Sequence[grant_file.Gpu]
    core_percent: int = 0
    capabilities: str = ""

    @property
    def pod(self) -> Pod:
        """Return the container in the place of a pod, as the node agent's parts expect it."""
        return Pod(uid=self.key, namespace=_NAMESPACE, name=self.name)

    @property
    def shares(self) -> Sequence[Share]:
        uncapped = self.core_percent == 0
        return [
            Share(gpu.uuid, gpu.minor, gpu.limit_bytes, gpu.core_percent, uncapped)
            for gpu in self.gpus
        ]

    @property
    def claim(self) -> Claim:
        return Claim(self.shares, allocated=self.shares, policy=self.gpus[0].policy)


def encode(grant: Grant) -> str:
    """Return the grant's text, without its key."""
    document = {"v": _VERSION, **asdict(grant)}
    del document["key"]
    return json.dumps(document, separators=(",", ":"))


def decode(key: str, text: str) -> Grant | None:
    """Return the grant of a text; None if this release cannot read it."""
    try:
        document = json.loads(text)
        if document.pop("v") != _VERSION:
            return None
        gpus = [
            grant_file.Gpu(**{**each, "policy": grant_file.Policy(each["policy"])})
            for each in document.pop("gpus")
        ]
        return Grant(key, gpus=gpus, **document) if gpus else None
    except (AttributeError, LookupError, TypeError, ValueError):
        return None


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
        "mounts": [
            {"hostPath": source, "containerPath": place, "options": options, "type": kind}
            for place, source, options, kind in plan.mounts
        ],
        "hooks": [_hook(hook) for hook in (*plan.hooks, check)],
    }
    document = {
        "cdiVersion": _CDI_VERSION,
        "kind": names.CDI_KIND_GRANT,
        "devices": [{"name": plan.key, "containerEdits": edits}],
    }
    return json.dumps(document, indent=1)


def _node(device: Device) -> Mapping[str, Any]:
    node = device._asdict()
    node["fileMode"] = node.pop("file_mode")
    return {key: value for key, value in node.items() if value is not None}


def _hook(hook: Hook) -> Mapping[str, Any]:
    made = {"hookName": hook.stage.value, "path": hook.path, "args": hook.args, "env": hook.env}
    return made if hook.timeout_s is None else {**made, "timeout": hook.timeout_s}
