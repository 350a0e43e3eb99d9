"""Collects once all facts about this host that the checks need.

Read-only: reads files and the kernel, queries the driver in a child and the agent over HTTP.
NVIDIA's runtime, other device plugins and DRA drivers can inject GPUs too. The toolkit's
configuration, the kubelet's sockets and the kubelet's checkpoint show which of these do.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import mmap
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from gpuslice.contract import names
from gpuslice.ffi import libc
from gpuslice.ffi.libc import ffi
from gpuslice.gpu.driver_root import READY
from nri_plugin.doctor import containerd, host_kernel, platform
from nri_plugin.doctor.facts import (
    Agent,
    DevicePlugins,
    Facts,
    Kernel,
    NvidiaRuntime,
    RunDir,
    Runtime,
)
from nri_plugin.gpu.inventory import Inventory
from nri_plugin.gpu.nvml_process import FIRST_S
from nri_plugin.host import (
    bundle,
    cdi_reader,
    device_plugins,
    driver_root,
    nvidia_runtime,
    releases,
    rooted_open,
    selinux,
    store,
)
from nri_plugin.host.descriptors import opened
from nri_plugin.host.driver_root import DriverRoot
from nri_plugin.host.nvidia_runtime import OPERATORS_CONFIG
from nri_plugin.policy import memory_limits
from nri_plugin.policy.model import Gpu, Specs
from nri_plugin.policy.refusals import StoreError
from nri_plugin.settings import Settings

_CRI_SOCKET: Final = "containerd.sock"
"""Name of containerd's own socket in its state directory."""
_AGENT_S: Final = 5.0
_HOSTS_PID_NAMESPACE: Final = 0xEFFFFFFC
"""Inode of /proc/self/ns/pid in the initial PID namespace, on every machine."""
_TMPFS_MAGIC: Final = 0x01021994
_MADV_WIPEONFORK: Final = 18
_OPERATORS: Final = (OPERATORS_CONFIG, Path(READY).parent)
"""Paths that exist where GPU Operator has installed its toolkit, or run its validator."""


def collect(
    settings: Settings, library: Path | None, containerd_config: Path | None, nvidia_config: Path
) -> Facts:
    """Collect the facts. library: None if it is not configured. containerd_config, nvidia_config:
    the host's paths; None: the file that the running containerd reads."""
    root = settings.host_root
    inventory = _inventory(settings)
    gpus = inventory.gpus
    drivers = driver_root.find(root, settings.driver_root)
    directories = dict.fromkeys((settings.generated_cdi_dir, *settings.cdi_dirs))
    specs = cdi_reader.load(directories, settings.cdi_kinds, drivers.stat)
    sockets = (settings.nri_socket, settings.containerd_state / _CRI_SOCKET)
    runtime = containerd.inspect_runtime(sockets, containerd_config, root)
    library_problem, published = _library(settings, library)
    return Facts(
        settings=settings,
        root=os.geteuid() == 0,
        socket=containerd.inspect_socket(settings.nri_socket, root),
        runtime=runtime,
        library_problem=library_problem,
        library_published=published,
        gpus=gpus,
        gpus_problem=inventory.problem,
        failed_gpus=[gpu for gpu in inventory.seen if gpu.problem],
        specs=specs,
        missing={gpu.uuid: missing(gpu, specs, drivers) for gpu in gpus},
        nvidia=read_nvidia_runtime(root, nvidia_config),
        plugins=find_device_plugins(settings),
        run_dir=_run_dir(settings.run_dir, root),
        kernel=_kernel(),
        agent=_agent(settings),
        driver=inventory.driver,
        without_driver_limits=memory_limits.unavailable(
            settings.memory_limits,
            inventory.driver,
            inventory.has_limits,
            str(settings.cgroup_root),
            (settings.cgroup_root / "cgroup.procs").exists(),
            inventory.seen,
        ),
        driver_root=str(drivers.host),
        dev_char=host_kernel.dev_char(root, drivers),
        selinux=selinux.enforcing(root),
        apparmor=host_kernel.apparmor(root),
        platform=platform.find(root),
        links=links(settings, runtime),
        state_seen=root == Path("/") or bundle.changed_s(settings.containerd_state) is not None,
    )


def links(settings: Settings, runtime: Runtime) -> Mapping[str, str]:
    """Map each directory that containerd's configuration names to its path with all links resolved.
    The agent's settings have resolved paths, and a check compares the two."""
    directories = [
        *runtime.cri.get("cdi_spec_dirs", ()),
        (runtime.config or {}).get("state") or "/",
    ]
    return {
        str(each): settings.on_host(settings.view.seen(Path(str(each)))) for each in directories
    }


def _inventory(settings: Settings) -> Inventory:
    inventory = Inventory(settings.environment, deadline_s=FIRST_S)

    async def refresh_once() -> None:
        await inventory.refresh()
        await inventory.close()

    asyncio.run(refresh_once())
    return inventory


def missing(gpu: Gpu, specs: Specs, drivers: DriverRoot) -> Sequence[str]:
    """Return the programs of the CDI device's hooks that do not exist on the host. Missing files
    and device nodes are reported by cdi_reader.py."""
    device = specs.devices.get(gpu.uuid)
    if device is None or device.problem is not None:
        return ()
    programs = [hook.path for edits in (device.common, device.own) for hook in edits.hooks]
    return sorted({path for path in programs if not _exists(path, drivers)})


def _exists(path: str, drivers: DriverRoot) -> bool:
    with contextlib.suppress(OSError):
        return drivers.seen(path).exists()
    return False


def _library(settings: Settings, library: Path | None) -> tuple[str | None, bool]:
    """Return why the library cannot be mounted into containers, and whether it is published."""
    if library is None:
        return "--library is not set", False
    try:
        stored = releases.place(store.read(library), names.FILE_LIBRARY, settings.store_dir)
    except StoreError as error:
        return str(error), False
    return None, stored.is_file()


def _run_dir(path: Path, root: Path) -> RunDir:
    in_pod = root != Path("/")
    try:
        place = next(each for each in (path, *path.parents) if each.exists())
        free = os.statvfs(place)
        tmpfs = _file_system(place) == _TMPFS_MAGIC
        status = path.stat() if place == path else None
        open_to = ""
        if status is not None and (status.st_mode & 0o077 or status.st_uid != os.geteuid()):
            open_to = f"user {status.st_uid}, mode {status.st_mode & 0o777:o}"
        mounts = Path("/proc/self/mountinfo").read_text() if in_pod else ""
        propagates = not in_pod or host_kernel.propagates(mounts, path)
        free_bytes = free.f_bavail * free.f_frsize
        return RunDir(tmpfs, free_bytes, free.f_favail, open_to=open_to, propagates=propagates)
    except OSError as error:
        return RunDir(False, 0, 0, f"{path}: {error.strerror}")


def _file_system(path: Path) -> int:
    """Return the file system's type (f_type, the first word of statfs), which os.statvfs omits."""
    words = ffi.new("long[64]")
    if libc.LIBC.statfs(os.fsencode(path), words) != 0:
        raise libc.error(path)
    return int(words[0])


def _kernel() -> Kernel:
    lacks: dict[str, str] = {}
    with opened("/", os.O_PATH | os.O_DIRECTORY) as root:
        try:
            with rooted_open.lookup(root, "/"):
                pass
        except OSError:
            lacks["openat2"] = "the inspection of images at StartContainer (Linux 5.6)"
    with mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as page:
        try:
            page.madvise(_MADV_WIPEONFORK)
        except OSError:
            lacks["MADV_WIPEONFORK"] = "the library, in programs that fork (Linux 4.14)"
    host_pids = False
    with contextlib.suppress(OSError):
        host_pids = os.stat("/proc/self/ns/pid").st_ino == _HOSTS_PID_NAMESPACE
    return Kernel(os.uname().release, lacks, host_pids)


def _agent(settings: Settings) -> Agent:
    address = settings.http
    if address is None:
        return Agent(None, problem="its endpoint is off")
    host, port = ("localhost", None) if isinstance(address, Path) else address
    reached: Mapping[str, str] = {"0.0.0.0": "127.0.0.1", "::": "::1"}
    connection = http.client.HTTPConnection(reached.get(host, host), port, timeout=_AGENT_S)
    try:
        with contextlib.closing(connection):
            if isinstance(address, Path):
                connection.sock = socket.socket(socket.AF_UNIX)
                connection.sock.settimeout(_AGENT_S)
                connection.sock.connect(str(address))
            connection.request("GET", "/readyz")
            answer = connection.getresponse()
            text = answer.read(1 << 16).decode(errors="replace").strip()
            return Agent(answer.status == http.HTTPStatus.OK, "; ".join(text.splitlines()))
    except (OSError, http.client.HTTPException) as error:
        return Agent(None, problem=str(error))


def read_nvidia_runtime(root: Path, file: Path) -> NvidiaRuntime:
    """Read the configuration of NVIDIA's runtime. root: path at which this process sees the host's
    root directory. file: the host's path; ignored where GPU Operator's toolkit has its own."""
    if _under(root, OPERATORS_CONFIG).is_file():
        file = OPERATORS_CONFIG
    try:
        return NvidiaRuntime(nvidia_runtime.read(_under(root, file)), str(file))
    except FileNotFoundError:
        return NvidiaRuntime(None, str(file))
    except (OSError, ValueError) as error:
        return NvidiaRuntime(None, str(file), f"{file}: {error}")


def find_device_plugins(settings: Settings) -> DevicePlugins:
    plugins, kubelet = settings.device_plugin_dir, settings.kubelet_dir
    signs = (
        device_plugins.plugin_sign(plugins),
        device_plugins.dra_sign(kubelet, settings.cdi_dirs),
    )
    plugins_seen = DevicePlugins(
        sockets=[
            f"{directory.name}/{path.name}"
            for directory in (plugins, kubelet / "plugins_registry")
            for path in device_plugins.sockets(directory)
        ],
        signs=[sign for sign in signs if sign is not None],
        operator=any(settings.view.seen(each).exists() for each in _OPERATORS),
    )
    if not plugins.is_dir():
        return replace(plugins_seen, problem=f"{settings.on_host(plugins)} does not exist")
    try:
        record = device_plugins.read_record(plugins)
    except device_plugins.RecordError as error:
        return replace(plugins_seen, problem=str(error))
    allocated = [(each.pod_uid, each.container, each.resource) for each in record.entries]
    return replace(plugins_seen, registered=record.registered, allocated=allocated)


def _under(root: Path, path: Path) -> Path:
    return root / path.relative_to("/")
