"""Generates kube-scheduler's configuration, and the policies for the schedulerNames served.

Pure but for its template, profiles.yaml beside it. `python -m scheduler profiles` prints both, with
one profile per schedulerName; manifests/30-profiles.yaml is that output. The other policies that
compare schedulerNames are files of manifests/, into which the command inserts further names.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from string import Template
from typing import Any, Final

import yaml

from contract import names

Json = Mapping[str, Any]

KOORDINATOR: Final = "koord-scheduler"
NAMES: Final = (names.SCHEDULER_NAME, KOORDINATOR)
"""schedulerNames that can be served: those whose dialect is implemented."""

CONFIG_MAP: Final = "gpuslice-kube-scheduler"
CONFIG_FILE: Final = "kube-scheduler.yaml"
"""Key in the ConfigMap; the Deployment mounts it."""
LEASE: Final = "gpuslice-kube-scheduler"
"""kube-scheduler's own Lease; the extender's is names.LEASE_SCHEDULER."""
EXTENDER_PORT: Final = 9444
"""On 127.0.0.1, within the pod."""
POLICY: Final = "gpuslice-scheduler-names"
STOCK: Final = "default-scheduler"
"""Also the schedulerName of pods that specify none."""

_OURS_ALONE: Final = f"in ['{names.SCHEDULER_NAME}']"
"""In the CEL of manifests/: the schedulerNames whose pods a policy validates."""
_TEMPLATE: Final = Template((pkgutil.get_data(__package__, "profiles.yaml") or b"").decode())


class ProfilesError(ValueError):
    """The name cannot be served; the text has the name, the reason and the allowed names."""


@dataclass(frozen=True, slots=True)
class Profiles:
    """served: the schedulerNames served, each one of NAMES, this project's own first.

    lease_s: duration of kube-scheduler's Lease, which another replica waits out after a crash.
    """

    served: Sequence[str] = (names.SCHEDULER_NAME,)
    extender: str = f"http://127.0.0.1:{EXTENDER_PORT}"
    lease_s: int = 15
    namespace: str = names.NAMESPACE

    def __post_init__(self) -> None:
        for name in self.served:
            if name not in NAMES:
                raise ProfilesError(
                    f"schedulerName: invalid value {name!r}: must be one of {', '.join(NAMES)}"
                )
        if len(set(self.served)) < len(self.served):
            raise ProfilesError(
                f"schedulerName: invalid value {', '.join(self.served)}: must be unique names"
            )
        if self.lease_s < 3:
            raise ProfilesError(f"lease-s: invalid value {self.lease_s}: must be 3 or more")


def _documents(profiles: Profiles) -> Sequence[dict[str, Any]]:
    """KubeSchedulerConfiguration, policy and policy binding."""
    filled = _TEMPLATE.substitute(
        namespace=profiles.namespace,
        lease=LEASE,
        policy=POLICY,
        stock=STOCK,
        extender=profiles.extender,
        lease_s=profiles.lease_s,
        renew_s=profiles.lease_s * 2 // 3,
        retry_s=max(1, profiles.lease_s * 2 // 15),
        served=_listed(profiles),
        allowed=" or ".join(profiles.served),
    )
    found = list(yaml.safe_load_all(filled))
    (profile,) = found[0]["profiles"]
    found[0]["profiles"] = [{**profile, "schedulerName": name} for name in profiles.served]
    return found


def _listed(profiles: Profiles) -> str:
    """The served names, in CEL."""
    return ", ".join(f"'{name}'" for name in profiles.served)


def configuration(profiles: Profiles) -> Json:
    """KubeSchedulerConfiguration."""
    return _documents(profiles)[0]


_HEADER: Final = """\
# Printed by `python -m scheduler profiles`, with its --serve for other names: kube-scheduler's
# configuration, and the policy that refuses shares under names that it does not serve.
"""


def manifest(profiles: Profiles, policies: Iterable[str] = ()) -> str:
    """The objects to apply to the cluster, as YAML. policies: files of manifests/, which follow
    with all served names."""
    config, policy, binding = _documents(profiles)
    config_map = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": CONFIG_MAP,
            "namespace": profiles.namespace,
            "labels": policy["metadata"]["labels"],
        },
        "data": {CONFIG_FILE: _yaml(config)},
    }
    texts = [text.replace(_OURS_ALONE, f"in [{_listed(profiles)}]") for text in policies]
    return _HEADER + "---\n".join([*map(_yaml, (config_map, policy, binding)), *texts])


class _Dumper(yaml.SafeDumper):
    """Writes multi-line strings as blocks, and no YAML references."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def _yaml(document: Json) -> str:
    return yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=100)


# --- conflicting schedulers ----------------------------------------------------------------------


def refuse_taken(profiles: Profiles, pods: Iterable[Json]) -> None:
    """Raises ProfilesError if a served name, other than this project's own, has its own scheduler
    among the pods.

    Two schedulers of one name place the same pods, and neither observes the other's pending
    choices.
    """
    served = set(profiles.served) - {names.SCHEDULER_NAME}
    for pod in pods:
        if served and (name := _runs(served, pod)):
            metadata = pod["metadata"]
            raise ProfilesError(
                f"schedulerName: invalid value {name!r}: must be served by one scheduler, and pod"
                f" {metadata['namespace']}/{metadata['name']} runs its own; stop that pod, or omit"
                " --serve"
            )


def _runs(served: set[str], pod: Json) -> str | None:
    """The name whose own scheduler this pod runs, by its images and its Deployment's labels; None:
    no name."""
    if pod.get("status", {}).get("phase") in ("Succeeded", "Failed"):
        return None
    images = (c.get("image", "") for c in pod.get("spec", {}).get("containers", ()))
    programs = {image.split("@")[0].rpartition("/")[2].split(":")[0] for image in images}
    labels = pod["metadata"].get("labels") or {}
    return next(iter(sorted(served & (programs | set(labels.values())))), None)
