"""Checks whether a container's existing configuration permits a share with an enforceable limit.

Pure, and part of the policy. Our mounts enforce the limit of a share. They cannot do so if the
container runs on another kernel, may use every device, has a GPU already, preloads libraries before
ours, or has a volume that exposes the host's grant files; the share is then refused. A container
without a share keeps its volumes, and the GPUs that another device plugin gave it.
"""

from __future__ import annotations

import posixpath
import re
from typing import Final

from nri_plugin.policy import nvidia
from nri_plugin.policy.injection import is_below, normal, with_parents
from nri_plugin.policy.model import Container, Paths, Pod, Rules
from nri_plugin.policy.refusals import Reason, refused

_AUDIT: Final = "LD_AUDIT"
"""glibc loads the libraries it names first, and calls them for every other library."""

_PRELOAD: Final = "LD_PRELOAD"
"""Its libraries load before those of /etc/ld.so.preload, which include ours."""
_NEVER_FIRST: Final = ("libc.so", "libdl.so", "libcuda.so", "libnvidia-ml.so")
"""If one of these loads first, programs bind to the driver's calls and bypass our library."""


def check_volumes(container: Container, paths: Paths) -> None:
    """Raise Refused if a volume gives the container write access to grants or the library.

    The run directory contains mounts of its own, which stay writable under a read-only volume.
    """
    run_dir = _on_host(paths.run_dir)
    never = dict.fromkeys(with_parents(run_dir), run_dir)
    never_written = never
    if paths.library is not None:
        library = _on_host(paths.library)
        never_written = dict.fromkeys(with_parents(library), library) | never
    for mount in container.mounts:
        if not mount.source.startswith("/"):
            continue
        source = _on_host(mount.source)
        if is_below(source, run_dir):
            raise refused(Reason.RESTORED, mount=mount.destination, source=mount.source)
        place = (never if "ro" in mount.options else never_written).get(source)
        if place is not None:
            raise refused(
                Reason.HOST_VOLUME, mount=mount.destination, source=mount.source, path=place
            )


def _on_host(path: str) -> str:
    """Resolve the one symbolic link that all hosts have: /var/run is /run."""
    plain = normal(path)
    return plain.removeprefix("/var") if is_below(f"{plain}/", "/var/run") else plain


def check_grant(pod: Pod, container: Container, rules: Rules) -> None:
    """Raise Refused if no share in this container could be limited."""
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
            raise refused(Reason.ENV_PRELOADS, key=name, value=value, library=library)
    given = given_gpu(container)
    if given:
        raise refused(Reason.GPU_GIVEN, given=given)


def _put_first(preload: str) -> str:
    """Return the library in an LD_PRELOAD value that must not load before ours; "": none."""
    for path in re.split("[ :]+", preload):
        if posixpath.basename(path).startswith(_NEVER_FIRST):
            return path
    return ""


def names_gpus(container: Container) -> str:
    """Return a warning if the environment requests GPUs by name; "" otherwise.

    The value `all`, which images set, does not count as a request.
    """
    for line in container.env:
        name, _, value = line.partition("=")
        if nvidia.names_gpus(name, value) and value != "all":
            return (
                f"environment {name}={value!r} names GPUs, but the pod's grant has none for this"
                " container: it starts without a GPU"
            )
    return ""


def given_gpu(container: Container) -> str:
    """Return the GPU (or what provides one) that the container has from others; "": none."""
    for device in container.devices:
        if nvidia.is_node(device.path, device.major):
            return f"device {device.path}"
    for mount in container.mounts:
        if not nvidia.may_be_node(mount.destination + mount.source):
            continue
        place = normal(mount.destination)
        if nvidia.is_request(place) or any(
            nvidia.is_node(path, 0) for path in (place, normal(mount.source))
        ):
            return f"mount {mount.destination}"
    return next((f"CDI device {name}" for name in container.cdi_names), "")
