"""kube-scheduler's configuration: a profile for each schedulerName served, and the extender.

Pure; `python -m scheduler profiles` prints it, and manifests/30-profiles.yaml is what it prints.
The names served stand in two objects, the configuration and the admission policy that refuses
shares under any other name (scheduler.naming), so both are printed together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import yaml

from contract import names
from scheduler import naming

Json = Mapping[str, Any]

KOORDINATOR: Final = "koord-scheduler"
NAMES: Final = (names.SCHEDULER_NAME, KOORDINATOR)
"""That can be served: those whose dialect is read."""

CONFIG_MAP: Final = "gpuslice-kube-scheduler"
CONFIG_FILE: Final = "kube-scheduler.yaml"
"""Of the ConfigMap; the Deployment mounts it."""
LEASE: Final = "gpuslice-kube-scheduler"
"""kube-scheduler's own Lease; the extender's is names.LEASE_SCHEDULER."""

EXTENDER_PORT: Final = 9444
"""On 127.0.0.1, within the pod."""

PACKING_WEIGHT: Final = 31
"""Of the extender's scores, 0 to 10, each worth 10 points of kube-scheduler's and multiplied by
this. One step is 310 points: more than LeastAllocated, BalancedAllocation and ImageLocality, of 100
each, can say against it together."""
PREFERENCE_WEIGHTS: Final = {
    "NodeAffinity": 32,
    "InterPodAffinity": 32,
    "PodTopologySpread": 32,
    "TaintToleration": 48,
}
"""Of what pods and nodes prefer by themselves, each 0 to 100 points: 3200 outweigh our 3100. To
each other they are as kube-scheduler has them."""


class ProfilesError(ValueError):
    """The name cannot be served; the text says which, why, and what is allowed."""


@dataclass(frozen=True, slots=True)
class Profiles:
    """served: the schedulerNames of pods that are placed here, each of NAMES, the first our own.

    lease_s: kube-scheduler's, which another replica of it waits out where one dies.
    """

    served: Sequence[str] = (names.SCHEDULER_NAME,)
    extender: str = f"http://127.0.0.1:{EXTENDER_PORT}"
    lease_s: int = 15
    namespace: str = field(default=names.NAMESPACE)

    def __post_init__(self) -> None:
        for name in self.served:
            if name not in NAMES:
                raise ProfilesError(f"scheduler name {name!r}; allowed are {', '.join(NAMES)}")
        if len(set(self.served)) < len(self.served):
            raise ProfilesError(f"scheduler names {', '.join(self.served)}: one is there twice")
        if names.SCHEDULER_NAME not in self.served:
            raise ProfilesError(
                f"scheduler names {', '.join(self.served) or 'none'}; {names.SCHEDULER_NAME} must"
                " be among them"
            )
        if self.lease_s < 3:
            raise ProfilesError(f"a lease of {self.lease_s} s; allowed are 3 s and more")


# --- kube-scheduler's configuration --------------------------------------------------------------


def configuration(profiles: Profiles) -> Json:
    """KubeSchedulerConfiguration."""
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {
            "leaderElect": True,
            "resourceLock": "leases",
            "resourceNamespace": profiles.namespace,
            "resourceName": LEASE,
            "leaseDuration": f"{profiles.lease_s}s",
            "renewDeadline": f"{profiles.lease_s * 2 // 3}s",
            "retryPeriod": f"{max(1, profiles.lease_s * 2 // 15)}s",
        },
        # It binds nothing itself; what it writes are events and the conditions of pending pods.
        "clientConnection": {"qps": 500, "burst": 1000},
        "podInitialBackoffSeconds": 1,
        "podMaxBackoffSeconds": 10,
        # Fewer, and the one node with room is not among those that the extender is asked about.
        "percentageOfNodesToScore": 100,
        "profiles": [_profile(name) for name in profiles.served],
        "extenders": [
            {
                "urlPrefix": profiles.extender,
                "filterVerb": "filter",
                "prioritizeVerb": "prioritize",
                # Else it deletes pods that free no card, and those of nodes that we leave out.
                "preemptVerb": "preempt",
                "bindVerb": "bind",
                "weight": PACKING_WEIGHT,
                "nodeCacheCapable": True,
                # Else kube-scheduler binds by itself, without an allocation, when we are away.
                "ignorable": False,
                # A bind may take 12 s where the API server does not answer (ADR 19).
                "httpTimeout": "15s",
            }
        ],
    }


def _profile(name: str) -> Json:
    return {
        "schedulerName": name,
        "percentageOfNodesToScore": 100,
        "plugins": {
            "multiPoint": {
                "enabled": [
                    {"name": plugin, "weight": weight}
                    for plugin, weight in PREFERENCE_WEIGHTS.items()
                ]
            }
        },
        "pluginConfig": [
            # Without it every Deployment is spread over the nodes, whatever its pods say.
            {
                "name": "PodTopologySpread",
                "args": {"defaultingType": "List", "defaultConstraints": []},
            },
            # Fewer, and the one node where victims free a card is not among those asked about.
            {"name": "DefaultPreemption", "args": {"minCandidateNodesPercentage": 100}},
        ],
    }


def config_map(profiles: Profiles) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": CONFIG_MAP, "namespace": profiles.namespace, "labels": naming.LABELS},
        "data": {CONFIG_FILE: _yaml(configuration(profiles))},
    }


# --- as text -------------------------------------------------------------------------------------

_HEADER: Final = """\
# Printed by `python -m scheduler profiles`, with its --serve for other names: kube-scheduler's
# configuration, and the policy that refuses shares under names that it does not serve.
"""


def manifest(profiles: Profiles) -> str:
    """What is applied to the cluster, as YAML."""
    documents = (config_map(profiles), naming.policy(profiles.served), naming.binding())
    return _HEADER + "---\n".join(_yaml(each) for each in documents)


class _Dumper(yaml.SafeDumper):
    """Texts of several lines as they are read, and no references."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def _yaml(document: Json) -> str:
    return yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=100)


# --- whose name it is ----------------------------------------------------------------------------


def refuse_taken(profiles: Profiles, pods: Iterable[Json]) -> None:
    """Raises ProfilesError where a name that is not ours has its own scheduler among the pods.

    Two schedulers of one name place the same pods, and neither sees what the other is about to do.
    """
    served = set(profiles.served) - {names.SCHEDULER_NAME}
    for pod in pods:
        if served and (name := _runs(served, pod)):
            metadata = pod["metadata"]
            raise ProfilesError(
                f"scheduler name {name}: its own scheduler runs in this cluster, as pod"
                f" {metadata['namespace']}/{metadata['name']}; stop it first, or serve"
                f" {names.SCHEDULER_NAME} alone"
            )


def _runs(served: set[str], pod: Json) -> str | None:
    """Which of the names is what this pod runs, by its images and its Deployment's labels."""
    if pod.get("status", {}).get("phase") in ("Succeeded", "Failed"):
        return None
    images = (c.get("image", "") for c in pod.get("spec", {}).get("containers", ()))
    programs = {image.split("@")[0].rpartition("/")[2].split(":")[0] for image in images}
    labels = pod["metadata"].get("labels") or {}
    return next(iter(sorted(served & (programs | set(labels.values())))), None)
