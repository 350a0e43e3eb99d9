"""What a container brings along before we answer, and whether it can have a share all the same.

Pure, and part of the policy. A share is limited by what we mount; where a container runs on
another kernel, may use every device, has a GPU already, or has its libraries chosen by another,
that limit is none, so a grant is refused. So is a volume, in any container of a pod with grants,
that shows the host's files of limits. A container without a grant keeps what another device plugin
gave it: taking it away is not ours.
"""

from __future__ import annotations

import posixpath
import re
from typing import Final

from nri_plugin import gpus
from nri_plugin.errors import Reason, refused
from nri_plugin.injection import is_below, normal
from nri_plugin.model import Container, Paths, Pod, Rules

_AUDIT: Final = "LD_AUDIT"
"""glibc loads what it names before anything else, and asks it about every other library."""

_PRELOAD: Final = "LD_PRELOAD"
"""What it names comes before what /etc/ld.so.preload names, our library too."""
_NEVER_FIRST: Final = ("libc.so", "libdl.so", "libcuda.so", "libnvidia-ml.so")
"""Where one of these comes first, programs find the driver's calls past us."""


def check_volumes(container: Container, paths: Paths) -> None:
    """Raise Refused where a volume shows grants or the library, to be written from inside.

    The run directory holds file systems of its own, which a read-only volume above leaves writable.
    """
    run_dir = _on_host(paths.run_dir)
    never = [run_dir]
    never_written = never if paths.library is None else [run_dir, _on_host(paths.library)]
    for mount in container.mounts:
        if not mount.source.startswith("/"):
            continue
        source = _on_host(mount.source)
        if is_below(source, run_dir):
            raise refused(Reason.RESTORED, mount=mount.destination, source=mount.source)
        for place in never if "ro" in mount.options else never_written:
            if place == source or is_below(place, source):
                raise refused(
                    Reason.HOST_VOLUME, mount=mount.destination, source=mount.source, place=place
                )


def _on_host(path: str) -> str:
    """The path with the one link in it that hosts have in common: /var/run is /run."""
    plain = normal(path)
    return plain.removeprefix("/var") if is_below(f"{plain}/", "/var/run") else plain


def check_grant(pod: Pod, container: Container, rules: Rules) -> None:
    """Raise Refused where no share could be limited."""
    if pod.runtime_handler not in rules.runtime_handlers:
        allowed = ", ".join(handler for handler in rules.runtime_handlers if handler)
        raise refused(Reason.HANDLER_UNKNOWN, handler=pod.runtime_handler, allowed=allowed)
    if container.privileged:
        raise refused(Reason.PRIVILEGED)
    for line in container.env:
        name, _, value = line.partition("=")
        if name == _AUDIT and value:
            raise refused(Reason.ENV_AUDITS, key=name, value=value)
        library = _put_first(value) if name == _PRELOAD else ""
        if library:
            never = ", ".join(_NEVER_FIRST)
            reason = Reason.ENV_PRELOADS
            raise refused(reason, key=name, value=value, library=library, names=never)
    given = given_gpu(container)
    if given:
        raise refused(Reason.GPU_GIVEN, given=given)


def _put_first(preload: str) -> str:
    """Of a value of LD_PRELOAD, the library that must not come before ours; empty: none."""
    for path in re.split("[ :]+", preload):
        if posixpath.basename(path).startswith(_NEVER_FIRST):
            return path
    return ""


def asks_for_gpus(container: Container) -> str:
    """Where the environment names GPUs, what the author should know of it; empty: it does not.

    What images say (all) is no wish for a certain GPU.
    """
    for line in container.env:
        name, _, value = line.partition("=")
        if gpus.names_gpus(name, value) and value != "all":
            return (
                f"environment {name}={value!r} names GPUs, but the pod's grant has none for this"
                " container: it starts without a GPU"
            )
    return ""


def given_gpu(container: Container) -> str:
    """The GPU, or what brings one, that the container has without us; empty: none."""
    for device in container.devices:
        if gpus.is_node(device.path, device.major):
            return f"device {device.path}"
    for mount in container.mounts:
        if not gpus.may_be_node(mount.destination + mount.source):
            continue
        place = normal(mount.destination)
        if gpus.is_request(place) or any(
            gpus.is_node(path, 0) for path in (place, normal(mount.source))
        ):
            return f"mount {mount.destination}"
    return next((f"CDI device {name}" for name in container.cdi_names), "")
