"""The node's current state: its GPUs, their CDI specs, and the library.

Queried for every container with a grant, and by the watch (watch.py). Blocking work runs in the
worker or a child, under a deadline. A CDI spec is generated for a GPU that has no usable one.
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
from nri_plugin.policy.bound_pods import BoundPods
from nri_plugin.policy.gpu_modes import Assigned, GpuModes, Mode
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
    """Its methods raise TimeoutError if the node does not answer in time."""

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
        # The agent's own directory comes first: its spec counts where no other one is usable.
        directories = dict.fromkeys((settings.generated_cdi_dir, *settings.cdi_dirs))
        self._specs = Reader(
            directories, settings.cdi_kinds, lambda path: self.driver_root.stat(path)
        )
        self._renewed_for: tuple[str, Path] | None = None
        """Driver's version and root for which specs were generated; None: an earlier agent's."""
        self.default_runtime: str | None = None
        """The OCI runtime's program of pods without a RuntimeClass; None: not known yet."""
        self.toolkit = Toolkit()
        """What that runtime accepts, if it is NVIDIA's."""
        self.unprotected = ""
        """Why containers without a share get GPUs without a limit; "": no cause is known."""
        self.selinux = ""
        """Why SELinux keeps containers from their limits; "": no cause is known."""
        self.runtime: RuntimeInfo | None = None
        """The connected runtime; set when its session is ready."""
        self.library: Path | None = None
        """The library that new containers mount; None: there is none."""
        self._looked = False

    @property
    def gpus(self) -> Sequence[Gpu]:
        """Return the GPUs that work and that the operator leaves to gpuslice."""
        mode = self.modes.mode
        return [gpu for gpu in self.inventory.gpus if mode(gpu)[0] is not Mode.EXCLUDED]

    @property
    def conflict(self) -> str | None:
        """Return why the node is another device plugin's, or may be held; None: it is ours."""
        unknown = self.modes.unknown and f"whole GPUs: {self.modes.unknown}"
        return self.modes.conflict(self._settings.node_name) or unknown or None

    @property
    def is_ours(self) -> bool:
        """Return whether gpuslice alone allocates this node's GPUs: other programs were looked for,
        none does, it is known which GPUs are held, and the operator has not excluded them all."""
        mode, seen = self.modes.mode, self.inventory.seen
        ours = not seen or any(mode(gpu)[0] is not Mode.EXCLUDED for gpu in seen)
        return ours and self._looked and self.conflict is None

    def note_default_runtime(self, sandbox_ids: Sequence[str]) -> None:
        """Read it from the newest of these sandboxes, of pods without a RuntimeClass. Runs in the
        worker."""
        state, host = self._settings.containerd_state, self._settings.host_root
        program = nvidia_runtime.default(state, sandbox_ids)
        if program is None:
            return
        self.default_runtime, self.unprotected = program, ""
        if nvidia_runtime.is_nvidias(program):
            self.toolkit = nvidia_runtime.toolkit(program, host)
            self.unprotected = nvidia_runtime.problem(program, self.toolkit, host)

    def as_on_host(self, text: str) -> str:
        """Return a text in which paths that are seen below the host's root are the host's own."""
        root = self._settings.host_root
        return text if root == Path("/") else text.replace(f"{root}/", "/")

    def find_directories(self) -> Sequence[str]:
        """Search for the driver's root anew, and return what the host lacks. Runs in the worker."""
        chosen = self._settings
        root = driver_root.find(chosen.host_root, chosen.driver_root, self.driver_root)
        if root != self.driver_root:
            _LOG.info(Line("driver root", path=root.host, earlier=self.driver_root.host))
            self.driver_root = self.generator.root = root
        return discovery.missing(chosen.view, chosen.containerd_state)

    async def look_for_plugins(self) -> None:
        """Note the signs of other programs that allocate GPUs, and what the kubelet assigned.
        WholeGpus reads the assignments where the agent is a device plugin itself."""
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
        """Runs in the worker."""
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
        """Raise Refused if another device plugin has given one of these GPUs to a pod. Runs in the
        worker. The kubelet records an assignment before it starts the container."""
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
        """Return the UIDs of the node's pods; None: not known, so that each recorded pod counts."""
        return self._bound_pods.uids() if self._bound_pods.listed else None

    async def resolve_cdi_names(self, cdi_names: Sequence[str]) -> Host:
        """Return the facts that show whether other programs' CDI names inject a GPU."""
        return await self.work(lambda: Host(self.with_gpu(cdi_names), cdi_vendor.majors()))

    def with_gpu(self, cdi_names: Sequence[str]) -> AbstractSet[str]:
        """Return those of these CDI names that inject a GPU; runs in the worker."""
        directories, status = self._settings.cdi_dirs, self.driver_root.stat
        return cdi_vendor.by_name(directories, cdi_names, status) if cdi_names else frozenset()

    def to_generate(self, specs: Specs) -> AbstractSet[str]:
        """Return the GPUs for which a CDI spec is to be generated: none is usable.

        A spec in the directory of generated ones would only be doubled. One file has all GPUs, so
        those that it describes already are generated again, too.
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
        """Generate CDI specs for these GPUs, unless that was tried just now; False: none is new.
        Raises OSError if they cannot be written."""
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
        """Generate again the specs made for another driver version or root, or by an earlier agent.

        The earlier specs stay until that succeeds, and are removed if it fails. Raises OSError; the
        next call then tries again, as after a timeout.
        """
        driver = self.inventory.driver, self.driver_root.host
        if driver == self._renewed_for:
            return
        uuids = await self.work(self.generator.present)
        if uuids and not await self.generate_specs(uuids):
            await self.work(self.generator.discard)
        self._renewed_for = driver

    def collect_releases(self, mounted: Callable[[], Collection[str] | None]) -> None:
        """Remove releases of the library that nothing uses. mounted: as for Store.collect. Runs in
        the worker, between the creations of containers."""
        for name in self._store.collect(mounted):
            release = self._settings.store_dir / name
            _LOG.info(Line("release of the library removed", directory=release))

    def inspect_host(self) -> tuple[Specs, Paths]:
        """Read the current CDI specs and library; runs in the worker."""
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
        """Run a job that blocks."""
        return await self._worker.run(job, self._settings.work_deadline_s)
