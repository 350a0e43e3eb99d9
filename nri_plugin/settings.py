"""Everything that can be set, once: a value that is built at the start and read by everybody.

How it is written on a command line and in the environment is command_line.py's. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path

from contract import names
from contract.log_lines import Format
from contract.overhead import CODE_BYTES
from nri_plugin.capabilities import ALWAYS
from nri_plugin.endpoint import Address
from nri_plugin.model import Rules


@dataclass(frozen=True, slots=True)
class Settings:
    """The node agent's settings; paths are the host's."""

    nri_socket: Path
    """containerd's NRI socket; it is made anew whenever containerd starts."""
    index: str
    """Two digits: plugins run in this order, and later ones see what earlier ones did."""
    run_dir: Path
    """Holds a small tmpfs per container with a grant."""
    store_dir: Path
    """Holds the library, by content hash; containers mount it from there."""
    library: Path
    """The library to publish; where it is missing, containers with a grant are refused."""
    cdi_dirs: Sequence[Path]
    """Directories of CDI specs, from the lowest priority to the highest."""
    containerd_state: Path
    """containerd's state directory, in which bundles and root file systems are found."""
    environment: Mapping[str, str]
    """Environment of the children that ask NVML."""
    remove_unverified: bool = False
    """Delete pods that were bound to a GPU that was full, instead of refusing their containers."""
    strict: bool = False
    """Mount forwarders over the driver's libraries, for programs that no preload reaches."""
    refuse_unenforceable: bool = False
    """Refuse a container whose entry point no limit reaches, instead of reporting it."""
    rules: Rules = Rules()  # noqa: RUF009
    """What the operator allows containers with a grant."""
    verbose: bool = False
    """Log what is routine, too."""
    log_format: Format = Format.LOGFMT
    http: Address | None = None
    """Where readiness and metrics are served; None: nowhere."""
    driver_capabilities: AbstractSet[str] = ALWAYS
    """Of NVIDIA_DRIVER_CAPABILITIES, what containers may ask for."""
    cdi_by_name: bool = False
    """Ask the runtime for CDI devices by their names, instead of applying their specs."""
    nvidia_ctk: Sequence[str] = ("nvidia-ctk",)
    """Generates CDI specs for GPUs that have none; empty: nothing does."""

    code_bytes: int = CODE_BYTES
    """What a process is charged for code beside its context, until a measurement has seen it."""
    managed_free: bool = False
    """Managed memory is not charged to containers that begin from now on."""

    kubeconfig: str = ""
    """How the API server is reached; empty: as a pod of the cluster, where it is one, else not."""
    node_name: str = ""
    """This node's name at the API server."""

    inventory_max_age_s: float = 15.0
    """How old what NVML said may be when a container gets a GPU; older, it is asked meanwhile."""
    inventory_look_s: float = 5.0
    """How often NVML is asked in a cluster, so that the scheduler hears of a GPU that fails."""
    inventory_look_most_s: float = 30.0
    """How long it is let alone at most, where it takes its time to answer."""
    work_deadline_s: float = 1.2
    """How long files or a look at a container may take; below 75 % of NRI's default of 2 s."""
    making_s: float = 120.0
    """How long a container may be in the making that was answered before a reconnect, and that the
    runtime did not list: the kubelet's patience with a call."""
    leave_s: float = 5.0
    """How long the agent may take to finish what is open when it is told to stop; the runtime's
    default patience with a request is 2 s."""
    silent_s: float = 60.0
    """How long the event loop may hang before the process ends itself; the liveness probe, which
    comes every few seconds, has it killed sooner."""
    first_retry_s: float = 0.2
    last_retry_s: float = 10.0
    """Pauses between attempts to reach containerd, doubled and jittered between these."""
    last_refused_s: float = 300.0
    """The longest pause where containerd was reached and there was no session: each attempt makes
    containerd wait. It ends at once where containerd makes its socket anew."""

    @property
    def in_cluster(self) -> bool:
        """Whether there is an API server to speak to."""
        return bool(self.kubeconfig or self.environment.get("KUBERNETES_SERVICE_HOST"))

    @property
    def plugin(self) -> str:
        """The runtime's name for this agent: what it set, it owns under this name."""
        return f"{self.index}-{names.PLUGIN_NAME}"

    @property
    def generated_cdi_dir(self) -> Path:
        """Where generated specs lie: out of everybody's sight, unless the runtime must see them."""
        return self.cdi_dirs[-1] if self.cdi_by_name else self.run_dir / ".cdi"
