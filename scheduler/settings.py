"""Everything that can be set, once: a value that is built at the start and read by everybody.

How it is written on a command line and in the environment is __main__'s.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from contract.log_lines import Format
from scheduler.core.request import Policy
from scheduler.election import Terms

Address = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Settings:
    """The scheduler's settings."""

    kubeconfig: str = ""
    """A file; "": as a pod of the cluster, or else as kubectl finds it."""
    listen: Address = ("127.0.0.1", 9444)
    """Where kube-scheduler calls us: whoever can connect can bind pods."""
    http: Address | None = ("0.0.0.0", 9445)
    """Where readiness, metrics and the fleet are served; None: nowhere."""
    installation: str = "default"
    """What replicas of one installation have in common, and no two installations."""
    state_dir: Path | None = None
    """Outlives the process and is nobody else's: one that is killed is replaced sooner."""
    policies: Mapping[str, Policy] = field(default_factory=dict)
    """By schedulerName, for pods that name no policy; others are packed."""
    log_format: Format = Format.LOGFMT
    verbose: bool = False
    """Log what is routine, too."""

    terms: Terms = field(default_factory=Terms)
    """The times of the Lease; changing one needs docs/adr/0018."""
    tend_s: float = 5.0
    """How often bindings of unknown outcome are looked at."""
    tell_s: float = 20.0
    """How often what is wrong in the cluster is looked for, to write Events of."""
    leave_s: float = 20.0
    """How long it may take to finish what is under way and to give the Lease back."""
