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
from gpuslice.gpu.driver_root import HostView
from gpuslice.kube.log_lines import Format
from nri_plugin.policy.capabilities import ALWAYS
from nri_plugin.policy.gpu_modes import Offer

Address = Path | tuple[str, int]
"""A Unix socket's path, or host and port."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The node agent's settings; flags.py explains those that have a flag.

    Paths of the host are as the agent sees them, but for run_dir and driver_root: run_dir is the
    same in both, and driver_root as the host has it. cdi_dirs: from the lowest priority to the
    highest. environment: of the children that query NVML.
    """

    nri_socket: Path
    index: str
    run_dir: Path
    library: Path
    cdi_dirs: Sequence[Path]
    containerd_state: Path
    environment: Mapping[str, str]
    host_root: Path = Path("/")
    driver_root: Path | None = None
    strict: bool = False
    refuse_unenforceable: bool = False
    runtime_handlers: Sequence[str] = ("", *names.RUNTIME_HANDLERS)
    allowed_capabilities: AbstractSet[str] = frozenset()
    """Those that a container with a GPU may have although they let it remove its limit."""
    verbose: bool = False
    log_format: Format = Format.LOGFMT
    http: Address | None = None
    driver_capabilities: AbstractSet[str] = ALWAYS
    cdi_kinds: Sequence[str] = names.CDI_KINDS
    nvidia_ctk: Sequence[str] = ("nvidia-ctk",)
    whole_gpus: Offer = Offer()  # noqa: RUF009
    kubelet_dir: Path = Path("/var/lib/kubelet")
    device_plugin_dir: Path = Path("/var/lib/kubelet/device-plugins")
    code_bytes: int = CODE_BYTES
    managed_free: bool = False
    core_forced: bool = False
    dialects: Sequence[Dialect] = (KOORDINATOR,)
    kubeconfig: str = ""
    node_name: str = ""

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
