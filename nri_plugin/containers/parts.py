"""The agent's components, as one value."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import partial

from nri_plugin.gpu.contexts import Contexts
from nri_plugin.gpu.inventory import Inventory
from nri_plugin.host.files import RunDirectory
from nri_plugin.host.store import Store
from nri_plugin.metrics import Metrics
from nri_plugin.policy.bound_pods import BoundPods
from nri_plugin.policy.front_ends import FrontEnds
from nri_plugin.policy.ledger import Ledger
from nri_plugin.policy.notices import Notices
from nri_plugin.readiness import Readiness
from nri_plugin.settings import Settings


@dataclass(frozen=True, slots=True)
class Parts:
    """files: the run directory, used by one worker thread only. bound_pods: the API server's pods
    of this node. claims: the source of containers' claims. notices: events to write."""

    settings: Settings
    inventory: Inventory
    contexts: Contexts
    files: RunDirectory
    store: Store
    metrics: Metrics = field(default_factory=Metrics)
    bound_pods: BoundPods = field(default_factory=BoundPods)
    notices: Notices = field(default_factory=Notices)
    claims: FrontEnds = field(default_factory=FrontEnds)
    ledger: Ledger = field(default_factory=Ledger)
    readiness: Readiness = field(default_factory=partial(Readiness, time.monotonic))

    @property
    def knows_pods(self) -> bool:
        """Whether the API server has listed the node's pods. True if there is no API server."""
        return self.bound_pods.listed or not self.settings.in_cluster
