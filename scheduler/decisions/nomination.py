"""Nominations, what became of them, and the pods that wait for kube-scheduler's first try."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from scheduler.decisions.pod_kinds import Order
from scheduler.kubernetes.requests import Pending
from scheduler.kubernetes.waiting import Waiting


class When(Enum):
    """Values of the option --nominate."""

    OFF = "off"
    BACKLOG = "backlog"
    ALWAYS = "always"


class Outcome(Enum):
    """Result of a nomination of this process."""

    NOMINATED = "nominated"
    CONFIRMED = "confirmed"
    """The pod was bound there."""
    LATE = "late"
    """kube-scheduler searched all nodes before it saw the nomination; the node is kept."""
    REFUSED = "refused"
    """kube-scheduler searched other nodes, or found none."""
    EXPIRED = "expired"
    """kube-scheduler did not try the pod in time."""
    FAILED = "failed"
    """The API server refused the write."""


@dataclass(frozen=True, slots=True)
class Nomination:
    """node None: withdraws the pod's nomination."""

    pending: Pending
    node: str | None


@dataclass(slots=True)
class WaitingPod:
    """arrived_s: when it was first observed; inf once kube-scheduler has tried it. node: reserved
    for it and nominated, "" for none. is_counted: by this process. is_tried: kube-scheduler tried
    the pod, or it is left to kube-scheduler. is_preempting: kube-scheduler may preempt others on
    the nominated node. is_withdrawing: the withdrawal is being written. written: the pod's versions
    before and after the last write."""

    waiting: Waiting
    order: Order
    arrived_s: float
    node: str = ""
    nominated_s: float = 0.0
    is_counted: bool = False
    is_tried: bool = False
    is_preempting: bool = False
    is_withdrawing: bool = False
    written: tuple[str, str] = ("", "")
