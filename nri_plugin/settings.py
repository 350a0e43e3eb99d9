"""All settings of the agent, in one immutable value that is created at the agent's start.

command_line.py reads them from the command line and the environment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path

from gpuslice.contract import names
from gpuslice.contract.dialects import KOORDINATOR, Dialect
from gpuslice.contract.grant_file import Policy
from gpuslice.contract.overhead import CODE_BYTES
from gpuslice.gpu.driver_root import HostView
from gpuslice.kube.log_lines import Format
from nri_plugin.policy.capabilities import ALWAYS
from nri_plugin.policy.front_ends import FrontEnd
from nri_plugin.policy.gpu_modes import Offer
from nri_plugin.policy.memory_limits import MemoryLimits

Address = Path | tuple[str, int]
"""A Unix socket's path, or host and port."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The node agent's settings; flags.py explains those that have a flag.

    Paths of the host are the paths in the agent's pod. Only driver_root is a path on the host, and
    run_dir is equal in both. cdi_dirs: ordered from the lowest priority to the highest.
    environment: the environment of the children that query NVML.
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
    """Linux capabilities that the operator allows although they can remove a container's limit."""
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
    core_policy: Policy = Policy.FAIR
    dialects: Sequence[Dialect] = (KOORDINATOR,)
    memory_limits: MemoryLimits = MemoryLimits.LIBRARY
    cgroup_root: Path = Path("/sys/fs/cgroup")
    kubeconfig: str = ""
    node_name: str = ""
    front_end: FrontEnd = FrontEnd.ANNOTATIONS

    inventory_max_age_s: float = 15.0
    """Maximum age of NVML's result when a container gets a GPU. If it is older, NVML is queried."""
    inventory_interval_s: float = 5.0
    """Interval of NVML queries in a cluster, which report failed GPUs to the scheduler."""
    inventory_interval_most_s: float = 30.0
    """Maximum interval of NVML queries if NVML answers slowly."""
    work_deadline_s: float = 1.2
    """Deadline for file operations and checks of a container. It must be below 1.5 s, which is
    75 % of NRI's default timeout."""
    making_s: float = 120.0
    """Time for which a container that the runtime does not list after a reconnect stays recorded,
    because its creation may still run. It is the kubelet's timeout for a call."""
    leave_s: float = 5.0
    """Maximum time to finish open requests when the agent must stop. The runtime's default timeout
    of a request is 2 s."""
    watchdog_s: float = 60.0
    """Time after which the watchdog ends a process whose event loop hangs. If a liveness probe is
    set, it does this earlier."""
    first_retry_s: float = 0.2
    last_retry_s: float = 10.0
    """first_retry_s, last_retry_s: first and longest pause between attempts to connect to
    containerd."""
    last_refused_s: float = 300.0
    """The longest pause after containerd accepted a connection but no session resulted, because
    each attempt delays containerd. The pause ends early if containerd replaces its socket."""

    @property
    def store_dir(self) -> Path:
        """The directory of the library's releases. Each container mounts one of them."""
        return self.run_dir / names.DIR_STORE

    @property
    def view(self) -> HostView:
        return HostView(self.host_root)

    def on_host(self, path: object) -> str:
        """Convert a path that the agent sees to the path on the host, for messages."""
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
        """The agent's name in the runtime, which records it as the owner of our adjustments."""
        return f"{self.index}-{names.PLUGIN_NAME}"

    @property
    def generated_cdi_dir(self) -> Path:
        """The directory of generated CDI specs. With --whole-gpus the runtime reads it too."""
        return self.cdi_dirs[-1] if self.whole_gpus else self.run_dir / ".cdi"
