"""The node's current state: its GPUs, their CDI specs, and the library.

The state is read for each container with a grant, and periodically by watch.py. Blocking work runs
in the worker or a child, under a deadline. CDI specs are generated for GPUs without a usable spec.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from gpuslice.kube.log_lines import Line
from nri_plugin.gpu.inventory import Inventory
from nri_plugin.host import cdi_vendor, device_plugins, discovery, driver_root, nvidia_runtime
from nri_plugin.host.cdi_generator import Generator
from nri_plugin.host.cdi_reader import Reader
from nri_plugin.host.store import Store
from nri_plugin.policy import memory_limits
from nri_plugin.policy.bound_pods import BoundPods
from nri_plugin.policy.gpu_modes import Assigned, GpuModes, Mode
from nri_plugin.policy.memory_limits import Limits, MemoryLimits
from nri_plugin.policy.merged import Host
from nri_plugin.policy.model import Gpu, Paths, Share, Specs
from nri_plugin.policy.nvidia import Toolkit
from nri_plugin.policy.other_plugins import Sign
from nri_plugin.policy.refusals import Reason, StoreError, refused
from nri_plugin.protocol.session_events import RuntimeInfo
from nri_plugin.settings import Settings
from nri_plugin.threads import Worker

_LOG: Final = logging.getLogger(__name__)

_T = TypeVar("_T")


class Node:
    """The node. Methods that wait for the worker raise TimeoutError after the deadline."""

    def __init__(
        self,
        settings: Settings,
        inventory: Inventory,
        store: Store,
        worker: Worker,
        bound_pods: BoundPods | None = None,
    ) -> None:
        self._settings = settings
        self.inventory = inventory
        self._bound_pods = bound_pods or BoundPods()
        self.modes = GpuModes(settings.whole_gpus)
        self._assignments = device_plugins.Assignments(settings.device_plugin_dir)
        self._store = store
        self._worker = worker
        self.driver_root = driver_root.find(settings.host_root, settings.driver_root)
        self.generator = Generator(
            settings.nvidia_ctk, settings.generated_cdi_dir, settings.environment, self.driver_root
        )
        # Later directories override earlier ones, so the generated spec is only a fallback.
        directories = dict.fromkeys((settings.generated_cdi_dir, *settings.cdi_dirs))
        self._specs = Reader(
            directories, settings.cdi_kinds, lambda path: self.driver_root.stat(path)
        )
        self._renewed_for: tuple[str, Path] | None = None
        """The driver's version and root for which this agent last renewed generated specs."""
        self.default_runtime: str | None = None
        """The OCI runtime's program for pods without a RuntimeClass; None: not known yet."""
        self.toolkit = Toolkit()
        """The requests for GPUs that the default runtime accepts, if it is NVIDIA's."""
        self.unprotected = ""
        """Why containers without a share get GPUs without a limit; "": no cause is known."""
        self.selinux = ""
        """Why SELinux keeps containers from the files of their limits; "": no cause is known."""
        self.runtime: RuntimeInfo | None = None
        """The container runtime of the last NRI session that became ready."""
        self.library: Path | None = None
        """The library that new containers mount; None: no library is available."""
        self._looked = False
        # At cgroup v1, /sys/fs/cgroup is only the directory of the hierarchies.
        self._is_v2 = (settings.cgroup_root / "cgroup.procs").exists()

    @property
    def limits(self) -> Limits:
        """Return which memory limits are in force on the node."""
        chosen, inventory, mode = self._settings, self.inventory, self.modes.mode
        if chosen.memory_limits is MemoryLimits.LIBRARY:
            return Limits(chosen.memory_limits)
        lacks = memory_limits.unavailable(
            chosen.memory_limits,
            inventory.driver,
            inventory.has_limits,
            str(chosen.cgroup_root),
            self._is_v2,
            [gpu for gpu in inventory.seen if mode(gpu)[0] is not Mode.EXCLUDED],
        )
        return Limits(chosen.memory_limits, lacks)

    @property
    def gpus(self) -> Sequence[Gpu]:
        """Return the GPUs that work and that the operator leaves to gpuslice."""
        mode = self.modes.mode
        return [gpu for gpu in self.inventory.gpus if mode(gpu)[0] is not Mode.EXCLUDED]

    @property
    def conflict(self) -> str | None:
        """Return how another program allocates this node's GPUs, or why it is not known which GPUs
        pods hold; None: neither."""
        unknown = self.modes.unknown and f"whole GPUs: {self.modes.unknown}"
        return self.modes.conflict(self._settings.node_name) or unknown or None

    @property
    def is_ours(self) -> bool:
        """Return whether gpuslice alone allocates this node's GPUs: other programs were searched
        for, there is no `conflict`, and the operator has not excluded all GPUs."""
        mode, seen = self.modes.mode, self.inventory.seen
        ours = not seen or any(mode(gpu)[0] is not Mode.EXCLUDED for gpu in seen)
        return ours and self._looked and self.conflict is None

    def note_default_runtime(self, sandbox_ids: Sequence[str]) -> None:
        """Determine the default runtime. sandbox_ids: sandboxes of pods without a RuntimeClass; the
        newest counts. Runs in the worker."""
        state, host = self._settings.containerd_state, self._settings.host_root
        program = nvidia_runtime.default(state, sandbox_ids)
        if program is None:
            return
        self.default_runtime, self.unprotected = program, ""
        if nvidia_runtime.is_nvidias(program):
            self.toolkit = nvidia_runtime.toolkit(program, host)
            self.unprotected = nvidia_runtime.problem(program, self.toolkit, host)

    def as_on_host(self, text: str) -> str:
        """Replace the agent's paths of the host's files in a text by the host's own paths."""
        root = self._settings.host_root
        return text if root == Path("/") else text.replace(f"{root}/", "/")

    def find_directories(self) -> Sequence[str]:
        """Search for the driver root. Return the missing directories. Runs in the worker."""
        chosen = self._settings
        root = driver_root.find(chosen.host_root, chosen.driver_root, self.driver_root)
        if root != self.driver_root:
            _LOG.info(Line("driver root", path=root.host, earlier=self.driver_root.host))
            self.driver_root = self.generator.root = root
        return discovery.missing(chosen.view, chosen.containerd_state)

    async def look_for_plugins(self) -> None:
        """Record signs of other programs that allocate GPUs, and the kubelet's assignments. Where
        the agent is a device plugin itself, WholeGpus reads the assignments instead."""
        chosen = self._settings
        plugin, dra, assigned = await self.work(self._others)
        now_s = time.monotonic()
        for source, sign in (("socket", plugin), ("dra", dra)):
            seen = sign and replace(sign, text=self.as_on_host(sign.text))
            self.modes.note(source, seen, now_s)
        self._looked = True
        if chosen.whole_gpus:
            return
        if isinstance(assigned, str):
            self.modes.unknown = self.as_on_host(assigned)
        else:
            self.modes.assigned(Assigned({}, assigned), self._existing_uids, now_s)

    def _others(self) -> tuple[Sign | None, Sign | None, Mapping[str, AbstractSet[str]] | str]:
        """Return the signs of a device plugin and a DRA driver, and each GPU's pods or why these
        are unknown. Runs in the worker."""
        chosen = self._settings
        plugin = device_plugins.plugin_sign(chosen.device_plugin_dir)
        dra = device_plugins.dra_sign(chosen.kubelet_dir, chosen.cdi_dirs)
        pods = self._assignments.pods
        try:
            gpus = self.inventory.seen
            return plugin, dra, {gpu.uuid: pods(gpu.uuid, gpu.minor) for gpu in gpus}
        except device_plugins.RecordError as error:
            return plugin, dra, str(error)

    def check_assignments(self, shares: Sequence[Share]) -> None:
        """Raise Refused if the kubelet has assigned one of these GPUs as a whole to a pod. The
        kubelet records an assignment before the container starts. Runs in the worker."""
        if self._settings.whole_gpus:
            return
        existing = self._existing_uids
        for share in shares:
            try:
                pods = self._assignments.pods(share.uuid, share.minor)
            except device_plugins.RecordError as error:
                raise refused(Reason.GPU_MODE_UNKNOWN, problem=error) from error
            for uid in sorted(pods):
                if existing is None or uid in existing:
                    pod = self._bound_pods.name(uid)
                    raise refused(Reason.GPU_WHOLE, uuid=share.uuid, pod=pod)

    @property
    def _existing_uids(self) -> AbstractSet[str] | None:
        """Return the UIDs of the node's pods. None: not known; each recorded pod then counts."""
        return self._bound_pods.uids() if self._bound_pods.listed else None

    async def resolve_cdi_names(self, cdi_names: Sequence[str]) -> Host:
        """Return the facts that show whether other programs' CDI names inject a GPU."""
        return await self.work(lambda: Host(self.with_gpu(cdi_names), cdi_vendor.majors()))

    def with_gpu(self, cdi_names: Sequence[str]) -> AbstractSet[str]:
        """Return which of these CDI names inject a GPU. Runs in the worker."""
        directories, status = self._settings.cdi_dirs, self.driver_root.stat
        return cdi_vendor.by_name(directories, cdi_names, status)

    def to_generate(self, specs: Specs) -> AbstractSet[str]:
        """Return the GPUs for which a CDI spec must be generated, because they have no usable one.

        A GPU with an unusable spec of another program in the directory of generated specs is left
        out: a second definition would not be valid either. All generated specs are in one file, so
        the GPUs that the file already describes are included.
        """
        ours, devices = self.generator.file, specs.devices
        described = {uuid for uuid, device in devices.items() if device.file == str(ours)}
        wanted = set()
        for uuid in (gpu.uuid for gpu in self.gpus):
            device = devices.get(uuid)
            if device is None or (
                device.problem is not None
                and (uuid in described or Path(device.file).parent != ours.parent)
            ):
                wanted.add(uuid)
        return wanted | described if wanted else frozenset()

    async def generate_specs(self, uuids: Collection[str]) -> bool:
        """Generate CDI specs for these GPUs, unless that was tried recently. Return whether specs
        were generated. Raises OSError if they cannot be written."""
        if not self._settings.nvidia_ctk or not self.generator.due:
            return False
        options = await self.work(lambda: self.generator.options(self._store.directory()))
        program = self._settings.nvidia_ctk
        before = await self.work(lambda: self.driver_root.node_commands(program))
        text = await self.generator.generate(uuids, options, before)
        if text is not None:
            await self.work(partial(self.generator.write, text))
        return text is not None

    async def renew_specs(self) -> None:
        """Replace generated specs that are for another driver version or root, or of an earlier
        agent. If none can be generated, remove the old ones. After an OSError or TimeoutError the
        old ones stay, and the next call tries again."""
        driver = self.inventory.driver, self.driver_root.host
        if driver == self._renewed_for:
            return
        uuids = await self.work(self.generator.present)
        if uuids and not await self.generate_specs(uuids):
            await self.work(self.generator.discard)
        self._renewed_for = driver

    def collect_releases(self, mounted: Callable[[], Collection[str] | None]) -> None:
        """Remove unused releases of the library. mounted: as for Store.collect. Must run in the
        worker, so that no container is created meanwhile."""
        for name in self._store.collect(mounted):
            release = self._settings.store_dir / name
            _LOG.info(Line("release of the library removed", directory=release))

    def inspect_host(self) -> tuple[Specs, Paths]:
        """Return the current CDI specs, and the library's paths. Runs in the worker."""
        chosen, default = self._settings, self.default_runtime
        missing = Paths(
            str(chosen.run_dir),
            library=None,
            capabilities=chosen.driver_capabilities,
            nvidia_default=default is None or nvidia_runtime.is_nvidias(default),
        )
        specs = self._specs.load()
        try:
            forwarders = self._store.forwarders() if chosen.strict else {}
            paths = {soname: str(path) for soname, path in forwarders.items()}
            return specs, replace(missing, library=str(self._library()), forwarders=paths)
        except StoreError as error:
            self.library = None
            return specs, replace(missing, library_problem=str(error))

    def _library(self) -> Path:
        path = self._store.own()
        if path != self.library:
            _LOG.info(Line("library for new containers", path=path))
            self.library = path
        return path

    async def work(self, job: Callable[[], _T]) -> _T:
        """Run a blocking job in the worker. Raises TimeoutError."""
        return await self._worker.run(job, self._settings.work_deadline_s)
