"""All settings of the agent, in one value that is created at its start.

command_line.py defines their syntax on the command line and in the environment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path

from gpuslice.contract import names
from gpuslice.contract.dialects import KOORDINATOR, Dialect
from gpuslice.contract.overhead import CODE_BYTES
from gpuslice.gpu.host_view import HostView
from gpuslice.kube.log_lines import Format
from nri_plugin.policy.capabilities import ALWAYS
from nri_plugin.policy.gpu_modes import Offer
from nri_plugin.policy.model import Rules

Address = Path | tuple[str, int]
"""A Unix socket's path, or host and port."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The node agent's settings. Paths of the host are as the agent sees them, but for run_dir,
    which is the same in both."""

    nri_socket: Path
    """containerd's NRI socket; containerd replaces it whenever it starts."""
    index: str
    """Two digits: plugins run in this order, and later ones see what earlier ones did."""
    run_dir: Path
    """Holds a small tmpfs per container with a grant."""
    library: Path
    """The library to publish; if it is missing, containers with a grant are refused."""
    cdi_dirs: Sequence[Path]
    """Directories of CDI specs, from the lowest priority to the highest."""
    containerd_state: Path
    """containerd's state directory, which contains bundles and root file systems."""
    environment: Mapping[str, str]
    """Environment of the children that query NVML."""
    host_root: Path = Path("/")
    """Where the agent sees the host's root directory."""
    driver_root: Path | None = None
    """The directory of the driver's files, as the host has it; None: the agent searches for it."""
    strict: bool = False
    """Mount forwarders over the driver's libraries, for programs that do not load preloads."""
    refuse_unenforceable: bool = False
    """Refuse a container whose entry point does not load the library, instead of reporting it."""
    rules: Rules = Rules()  # noqa: RUF009
    """The operator's permissions for containers with a grant."""
    verbose: bool = False
    """Also log routine requests."""
    log_format: Format = Format.LOGFMT
    http: Address | None = None
    """Address that serves readiness and metrics; None: not served."""
    driver_capabilities: AbstractSet[str] = ALWAYS
    """The values of NVIDIA_DRIVER_CAPABILITIES that containers may request."""
    cdi_kinds: Sequence[str] = names.CDI_KINDS
    """Kinds of CDI device that describe GPUs; the first one that has the GPU is used."""
    nvidia_ctk: Sequence[str] = ("nvidia-ctk",)
    """Command that generates CDI specs for GPUs that have none; empty: none are generated."""

    whole_gpus: Offer = Offer()  # noqa: RUF009
    """The GPUs that pods may hold whole, by nvidia.com/gpu; false: none, and no device plugin."""
    kubelet_dir: Path = Path("/var/lib/kubelet")
    """The kubelet's --root-dir, which contains the socket of its PodResources API."""
    device_plugin_dir: Path = Path("/var/lib/kubelet/device-plugins")
    """Directory of the device plugins' sockets, the same for every --root-dir of the kubelet."""

    code_bytes: int = CODE_BYTES
    """A process's charge for code, beside its context, until a measurement includes it."""
    managed_free: bool = False
    """Do not charge managed memory to containers that are created from now on."""
    core_forced: bool = False
    """Cap the compute of containers that are created from now on also while a GPU is idle."""

    dialects: Sequence[Dialect] = (KOORDINATOR,)
    """Dialects whose totals the node reports."""

    kubeconfig: str = ""
    """Access to the API server; "": as a pod of the cluster, or none outside a cluster."""
    node_name: str = ""
    """This node's name at the API server."""

    inventory_max_age_s: float = 15.0
    """Maximum age of NVML's result when a container gets a GPU; if older, NVML is queried then."""
    inventory_interval_s: float = 5.0
    """Interval of NVML queries in a cluster, so that the scheduler is notified of a failed GPU."""
    inventory_interval_most_s: float = 30.0
    """Maximum interval of NVML queries if NVML answers slowly."""
    work_deadline_s: float = 1.2
    """Deadline for files and for checks of a container; below 75 % of NRI's default of 2 s."""
    making_s: float = 120.0
    """Maximum time for the creation of a container that was answered before a reconnect and that
    the runtime did not list: the kubelet's timeout for a call."""
    leave_s: float = 5.0
    """Maximum time to finish open requests when the agent must stop; the runtime's default timeout
    of a request is 2 s."""
    watchdog_s: float = 60.0
    """Time without the event loop after which the process ends itself. The liveness probe, every
    few seconds, kills it earlier."""
    first_retry_s: float = 0.2
    last_retry_s: float = 10.0
    """Bounds of the pause between attempts to reach containerd, with backoff and jitter."""
    last_refused_s: float = 300.0
    """The longest pause if containerd was reached and no session resulted, because each attempt
    delays containerd. It ends at once if containerd replaces its socket."""

    @property
    def store_dir(self) -> Path:
        """Holds the library, by content hash; containers mount it from there."""
        return self.run_dir / names.DIR_STORE

    @property
    def view(self) -> HostView:
        return HostView(self.host_root)

    def on_host(self, path: object) -> str:
        """Return the host's path of what is seen at this one, for messages."""
        return str(self.view.on_host(Path(str(path))))

    @property
    def node_resources(self) -> Sequence[str]:
        """The resources whose totals the node reports."""
        return [name for dialect in self.dialects for name in dialect.node_resources]

    @property
    def in_cluster(self) -> bool:
        """Whether an API server is configured."""
        return bool(self.kubeconfig or self.environment.get("KUBERNETES_SERVICE_HOST"))

    @property
    def plugin(self) -> str:
        """The runtime's name for this agent, by which it records ownership of adjustments."""
        return f"{self.index}-{names.PLUGIN_NAME}"

    @property
    def generated_cdi_dir(self) -> Path:
        """Directory of generated specs: private, unless the runtime must read them."""
        return self.cdi_dirs[-1] if self.whole_gpus else self.run_dir / ".cdi"
