"""What the agent hands to all that happens to a container."""

from __future__ import annotations

from dataclasses import dataclass, field

from nri_plugin.gpu.contexts import Contexts
from nri_plugin.gpu.inventory import Inventory
from nri_plugin.host.files import RunDirectory
from nri_plugin.host.store import Store
from nri_plugin.metrics import Metrics
from nri_plugin.policy import annotation_claims
from nri_plugin.policy.bound_pods import BoundPods
from nri_plugin.policy.model import ClaimSource
from nri_plugin.policy.notices import Notices
from nri_plugin.settings import Settings


@dataclass(frozen=True, slots=True)
class Parts:
    """files: used by one worker thread alone. bound_pods: the API server's state. claims: where the
    containers' claims come from."""

    settings: Settings
    inventory: Inventory
    contexts: Contexts
    files: RunDirectory
    store: Store
    metrics: Metrics = field(default_factory=Metrics)
    bound_pods: BoundPods = field(default_factory=BoundPods)
    notices: Notices = field(default_factory=Notices)
    claims: ClaimSource = annotation_claims
