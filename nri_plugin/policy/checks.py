"""The checks of a container whose share is known, in the order in which they refuse it.

Pure. `CHECKS` has the order, and each check raises Refused. docs/architecture.md lists what refuses
a container before and after these checks. A limit depends on our mounts. Our mounts cannot enforce
the limit if the container runs on another kernel, may use every device, has a GPU already, preloads
libraries before ours, or has a volume with the host's grant files.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from gpuslice.contract import names
from nri_plugin.policy import capabilities, injection, nvidia
from nri_plugin.policy.model import CdiDevice, Claim, Container, Mount, Paths, Pod, Specs
from nri_plugin.policy.places import Destinations, is_below, normal, with_parents
from nri_plugin.policy.refusals import Reason, refused

_AUDIT: Final = "LD_AUDIT"
"""A variable that names libraries. They load first. glibc calls them at each later load."""

_PRELOAD: Final = "LD_PRELOAD"
"""A variable that names libraries. They load before ours, which /etc/ld.so.preload names."""
_NEVER_FIRST: Final = ("libc.so", "libdl.so", "libcuda.so", "libnvidia-ml.so")
"""Names of libraries. If one loads first, programs call the driver and bypass our library."""


@dataclass(frozen=True)
class Request:
    """A container with a share, and the host's CDI specs and paths. The properties are parts of the
    container's plan. They raise Refused.

    key: names the directory of the container's files. runtime_handlers: the allowed handlers, which
    run containers on the host's kernel. "" is the default handler.
    """

    pod: Pod
    container: Container
    claim: Claim
    key: str
    specs: Specs
    paths: Paths
    runtime_handlers: Sequence[str] = ("", *names.RUNTIME_HANDLERS)

    @cached_property
    def driver(self) -> capabilities.DriverCapabilities:
        return capabilities.select(self.container.env, self.paths.capabilities)

    @cached_property
    def gpus(self) -> injection.GpuEdits:
        devices = tuple(_device(share.uuid, self.specs) for share in self.claim.shares)
        forwarders = tuple(self.paths.forwarders.items())
        return injection.gpu_edits(devices, self.driver.given, forwarders)

    @cached_property
    def mounts(self) -> Sequence[Mount]:
        """Our mounts, without the mounts of the driver's files."""
        ours = injection.our_mounts(self.container, self.key, self.claim.shared, self.paths)
        return (*ours, *self.gpus.forwarders)

    @cached_property
    def env(self) -> Sequence[tuple[str, str]]:
        default = self.paths.nvidia_default
        hidden = nvidia.may_read_variables(self.pod.runtime_handler, default)
        text, cdi = self.driver.text, self.gpus.edits.env
        return injection.environment(self.claim, text, cdi, hidden)


def volumes(request: Request) -> None:
    """No volume may make grants visible, or the library writable. A read-only volume of the run
    directory is refused too, because the mounts inside it stay writable."""
    run_dir = _on_host(request.paths.run_dir)
    never = dict.fromkeys(with_parents(run_dir), run_dir)
    never_written = never
    if request.paths.library is not None:
        library = _on_host(request.paths.library)
        never_written = dict.fromkeys(with_parents(library), library) | never
    for mount in request.container.mounts:
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
    """Replace /var/run by /run, because it is a symbolic link on all hosts."""
    plain = normal(path)
    return plain.removeprefix("/var") if is_below(f"{plain}/", "/var/run") else plain


def handler(request: Request) -> None:
    """The pod's RuntimeClass must run containers on the host's kernel."""
    name, handlers = request.pod.runtime_handler, request.runtime_handlers
    if name not in handlers:
        allowed = ", ".join(each for each in handlers if each)
        raise refused(Reason.HANDLER_UNKNOWN, handler=name, allowed=allowed)


def privileged(request: Request) -> None:
    """The container must not be privileged, because it could then use every device."""
    if request.container.privileged:
        raise refused(Reason.PRIVILEGED)


def loaded_first(request: Request) -> None:
    """LD_AUDIT must not be set, and LD_PRELOAD must not name a library of _NEVER_FIRST."""
    for line in request.container.env:
        name, _, value = line.partition("=")
        if name == _AUDIT and value:
            raise refused(Reason.ENV_AUDITS, key=name, value=value)
        library = _put_first(value) if name == _PRELOAD else ""
        if library:
            raise refused(Reason.ENV_PRELOADS, key=name, value=value, library=library)


def _put_first(preload: str) -> str:
    """Return the first library of an LD_PRELOAD value that must not load before ours. "": none."""
    paths = re.split("[ :]+", preload)
    return next((p for p in paths if posixpath.basename(p).startswith(_NEVER_FIRST)), "")


def other_gpu(request: Request) -> None:
    """The container must not have a GPU that another program gave it."""
    gpu = given_gpu(request.container)
    if gpu:
        raise refused(Reason.GPU_GIVEN, given=gpu)


def library(request: Request) -> None:
    if request.paths.library is None:
        raise refused(Reason.LIBRARY_MISSING, problem=request.paths.library_problem)


def cdi(request: Request) -> None:
    """The host must have a usable CDI device for each GPU, and these must not conflict."""
    _ = request.gpus


def _device(uuid: str, specs: Specs) -> CdiDevice:
    device = specs.devices.get(uuid)
    if device is None:
        hint = f"; unreadable: {'; '.join(specs.problems)}" if specs.problems else ""
        raise refused(Reason.CDI_MISSING, uuid=uuid, hint=hint)
    if device.problem is not None:
        device_name = f"{device.kind}={uuid}"
        raise refused(
            Reason.CDI_UNUSABLE, device=device_name, file=device.file, problem=device.problem
        )
    return device


def mounts(request: Request) -> None:
    """No mount of the container or the driver may be over, under or inside one of our mounts."""
    ours = Destinations(mount.destination for mount in request.mounts)
    for mount in (*request.container.mounts, *request.gpus.in_the_way):
        hidden = ours.hidden_by(mount)
        if hidden is not None:
            raise refused(Reason.MOUNT_COLLISION, mount=mount.destination, ours=hidden)


def env(request: Request) -> None:
    """The container must have none of our variables twice. The runtime replaces only the first
    value, and programs may read the second."""
    present = [line.partition("=")[0] for line in request.container.env]
    for key, _ in request.env:
        count = present.count(key)
        if count > 1:
            raise refused(Reason.ENV_TWICE, key=key, count=count)


CHECKS: Final[Sequence[Callable[[Request], None]]] = (
    volumes,
    handler,
    privileged,
    loaded_first,
    other_gpu,
    library,
    cdi,
    mounts,
    env,
)


def names_gpus(lines: Iterable[str]) -> str:
    """Return a warning if a variable requests GPUs by name, else "". The value `all` does not
    count, because images set it."""
    for line in lines:
        name, _, value = line.partition("=")
        if nvidia.names_gpus(name, value) and value != "all":
            return (
                f"environment {name}={value!r} names GPUs, but the pod's grant has none for this"
                " container: it starts without a GPU"
            )
    return ""


def given_gpu(container: Container) -> str:
    """Return the device, mount or CDI name by which the container has another program's GPU. "": it
    has none."""
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
