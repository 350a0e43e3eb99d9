"""The plan: what a container gets, as one value that is computed once.

Pure. host/files.py creates the plan's files, and translate.py converts the rest to the runtime's
answer. differences.py compares the plan with what the container has.
Invariant: a container never runs without the limit it was granted.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from gpuslice.contract import names
from gpuslice.contract.grant_file import Policy
from gpuslice.contract.quantity import format_binary
from nri_plugin.policy import checks, ledger
from nri_plugin.policy.checks import Request
from nri_plugin.policy.injection import claim_mounts, file_name
from nri_plugin.policy.model import Claim, Container, Device, Hook, Mount, Pod, Share
from nri_plugin.policy.refusals import Reason, refused

GRANT: Final = f"{names.CONTAINER_DIR}/{names.FILE_GRANT}"
_FILE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,229}")
_NO_GPU: Final = ((names.ENV_VISIBLE_DEVICES, names.VISIBLE_DEVICES_NONE),)
_NO_FILES: Final[Mapping[str, str]] = MappingProxyType({})
_HASH_SHOWN: Final = 8
_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class ContainerPlan:
    """What a container gets. key: names its directory in the run directory. None: it has no GPU.

    shared: all containers of the pod use the directory. files: the host's files on which the limit
    depends, by the path at which the container must have them. cut: driver capabilities that were
    requested and not given. warning: why a container has no GPU, though it appears to expect one.
    policy: the compute policy of its shares.
    """

    env: Sequence[tuple[str, str]] = ()
    key: str | None = None
    container: str = ""
    shared: bool = False
    shares: Sequence[Share] = ()
    files: Mapping[str, str] = field(default_factory=lambda: _NO_FILES, hash=False)
    mounts: Sequence[Mount] = ()
    devices: Sequence[Device] = ()
    hooks: Sequence[Hook] = ()
    cut: Sequence[str] = ()
    warning: str = ""
    policy: Policy = Policy.FAIR

    @property
    def preloads(self) -> Mapping[str, str]:
        """Return the names of the preload lists in the directory, by path in the container."""
        files = self.files
        return {
            place: posixpath.basename(files[place])
            for place in names.CONTAINER_PRELOADS
            if place in files
        }

    @property
    def log_fields(self) -> Mapping[str, str]:
        """Return fields of a log line: UUID:MEMORY:PERCENT of each GPU, the compute policy, the
        beginning of the library's hash, and the key. Empty for a container without a share."""
        if self.key is None:
            return {}
        gpus = (
            f"{share.uuid}:{format_binary(share.memory_bytes)}:{share.core_percent}"
            for share in self.shares
        )
        release = posixpath.basename(posixpath.dirname(self.files[names.CONTAINER_LIBRARY]))
        shown = {"gpus": ",".join(gpus), "policy": self.policy.value}
        return {**shown, "library": release[:_HASH_SHOWN], "key": self.key}


def grant_key(pod: Pod, container: Container, claim: Claim) -> str:
    """Return the key: the directory name of the grant's files. Raises Refused if it is invalid."""
    used = {"pod uid": pod.uid, "container name": container.name}
    if claim.key:
        used["shares of claims"] = claim.key
    for what, name in (used if claim.shared else {"container id": container.id}).items():
        if not _FILE_NAME.fullmatch(name):
            raise refused(Reason.IDENTITY_INVALID, what=what, value=name)
    return ledger.grant_key(claim, pod.uid, container.id)


def with_share(request: Request, default: Policy = Policy.FAIR) -> ContainerPlan:
    """Make the plan of a container with a share, after all checks. Raises Refused. default: the
    node's compute policy."""
    for check in checks.CHECKS:
        check(request)
    gpus, ours = request.gpus, request.mounts
    files = {mount.destination: mount.source for mount in ours}
    files.pop(names.CONTAINER_LIBRARY_VISIBLE, None)
    files[GRANT] = f"{files[names.CONTAINER_DIR]}/{names.FILE_GRANT}"
    return ContainerPlan(
        env=request.env,
        key=request.key,
        container=file_name(request.container, request.key),
        shared=request.claim.shared,
        shares=tuple(request.claim.shares),
        files=MappingProxyType(files),
        mounts=(*gpus.mounts, *ours, *claim_mounts(request.key)),
        devices=gpus.edits.devices,
        hooks=gpus.edits.hooks,
        cut=request.driver.cut,
        policy=request.claim.policy or default,
    )


def without_share(container: Container, claim: Claim | None) -> ContainerPlan | None:
    """Make the plan of a container without a share. None: the container is not changed, because
    its pod has no claim, or because another program gave it a GPU."""
    if claim is None or checks.given_gpu(container):
        return None
    warning = claim.warning or checks.names_gpus(container.env)
    return ContainerPlan(_NO_GPU, container=container.name, warning=warning)


def encode(plan: ContainerPlan) -> bytes:
    """Return the part of the plan that is stored: `files`, which a later start compares."""
    return json.dumps({"v": _VERSION, "files": dict(plan.files)}).encode()


def decode(data: bytes, key: str, container: str) -> ContainerPlan | None:
    """Return the plan from its stored part. None: this release cannot read the data."""
    try:
        stored = json.loads(data)
    except ValueError:
        return None
    if not isinstance(stored, dict) or stored.get("v") != _VERSION:
        return None
    files = stored.get("files")
    if not isinstance(files, dict) or not all(isinstance(each, str) for each in files.values()):
        return None
    return ContainerPlan(key=key, container=container, files=files)
