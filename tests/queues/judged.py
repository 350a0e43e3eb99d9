"""Lets a real Kueue judge many sets of queues at once: Workloads of one GPU, and no pods.

Each trial has its own root cohort, because a prefix makes its objects' names different. A Workload
that Kueue evicts is deleted and made again, as the controller of a deleted pod makes another.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final

from gpuslice.contract import names
from scheduler.queues import kueue, tree
from tests.cluster.server import Server
from tests.queues.conftest import NAMESPACE
from tests.queues.kai import Q, leaves

Runs = Mapping[str, int]

_STEADY_S: Final = 3.0
_API: Final = f"/apis/{kueue.API_VERSION}"
_WORKLOADS: Final = f"{_API}/namespaces/{NAMESPACE}/workloads"
_REFERENCES: Final = ("parentName", "cohortName", "clusterQueue")
_NUMBERS: Final = count()


@dataclass
class Trial:
    """Queues and their demands, phase after phase. is_over: whether the pods that run are those of
    the end of a phase, by its number; they must be for _STEADY_S. evicted: how many pods of each
    queue Kueue evicted."""

    title: str
    gpus: int
    queues: Sequence[Q]
    phases: Sequence[Runs]
    is_over: Callable[[int, Runs], bool]
    phase: int = -1
    runs: Runs = field(default_factory=dict)
    since_s: float = 0.0
    took_s: list[float] = field(default_factory=list)
    begun_s: float = 0.0
    evicted: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.tag = f"t{next(_NUMBERS)}-"
        self.made = Counter[str]()
        self.quotas: Mapping[str, float] = {}
        """The nominal quota of each queue, by the name of its object."""

    @property
    def is_done(self) -> bool:
        return self.phase == len(self.phases)

    def objects(self) -> list[dict[str, Any]]:
        capacity = self.gpus * tree.MILLI
        queues = tree.build(queue.raw() for queue in self.queues)
        kueue.divide(queues, capacity)
        self.quotas = {f"{self.tag}{q}": each.own / tree.MILLI for q, each in queues.items()}
        local = [(NAMESPACE, queue.name) for queue in leaves(self.queues)]
        made = kueue.objects(queues, local)
        for each in made:
            if each["kind"] == "ResourceFlavor":
                continue
            each["metadata"]["name"] = self.tag + each["metadata"]["name"]
            for key in _REFERENCES:
                if key in each["spec"]:
                    each["spec"][key] = self.tag + each["spec"][key]
        return made


class _Holders:
    """The Workloads that hold quota of each queue, by the order of all changes. Asserts of each
    evicted one that its queue was above its nominal quota, without those evicted before."""

    def __init__(self, trials: Sequence[Trial]) -> None:
        self._quotas = {name: quota for trial in trials for name, quota in trial.quotas.items()}
        self._held: dict[str, set[str]] = {name: set() for name in self._quotas}
        self.evicted = 0

    def follow(self, server: Server, version: str) -> str:
        """Read the changes since the version, for a second. Return the version of the last."""
        for event in server.changes(_WORKLOADS, version):
            self._change(event)
            version = event["object"]["metadata"]["resourceVersion"]
        return version

    def _change(self, event: Mapping[str, Any]) -> None:
        raw, queue = event["object"], event["object"]["spec"]["queueName"]
        if queue not in self._held:
            return  # of an earlier test
        name, held, state = raw["metadata"]["name"], self._held[queue], raw.get("status", {})
        is_evicted = "Evicted" in _met(state)
        if is_evicted and name in held:
            self.evicted += 1
            quota = self._quotas[queue]
            assert len(held) > quota, f"{name} was evicted, and {queue} used {len(held)} of {quota}"
        if event["type"] == "DELETED" or is_evicted or "admission" not in state:
            held.discard(name)
        else:
            held.add(name)


def _met(state: Mapping[str, Any]) -> set[str]:
    return {each["type"] for each in state.get("conditions", ()) if each["status"] == "True"}


def judge(server: Server, trials: Sequence[Trial], within_s: float) -> None:
    """Run all trials to their end. Assert that each ends in time, and that only Workloads which
    borrowed were evicted."""
    for trial in trials:
        for each in trial.objects():
            _post(server, each)
    holders = _Holders(trials)
    version = server.get(f"{_WORKLOADS}?limit=1")["metadata"]["resourceVersion"]
    by_tag, until_s = {trial.tag: trial for trial in trials}, time.monotonic() + within_s
    while not all(trial.is_done for trial in trials):
        assert time.monotonic() < until_s, [
            (trial.title, trial.phase, dict(trial.runs)) for trial in trials if not trial.is_done
        ]
        _look(server, by_tag)
        for trial in trials:
            if _advance(server, trial):  # the API server keeps changes for a minute
                version = holders.follow(server, version)
        version = holders.follow(server, version)
    assert holders.evicted >= sum(trial.evicted.total() for trial in trials)
    server.ask("DELETE", _WORKLOADS)


def _advance(server: Server, trial: Trial) -> bool:
    """Begin the next phase if the present one is over. Return whether Workloads were made."""
    now_s = time.monotonic()
    if trial.is_done or (trial.phase >= 0 and not trial.is_over(trial.phase, trial.runs)):
        trial.since_s = now_s
        return False
    if trial.phase < 0 or now_s - trial.since_s >= _STEADY_S:
        if trial.phase >= 0:
            trial.took_s.append(trial.since_s - trial.begun_s)
        trial.phase, trial.since_s = trial.phase + 1, now_s
        if not trial.is_done:
            demands = trial.phases[trial.phase]
            # The queues' pods come in turn, because each eviction that corrects a sum takes time.
            for nth in range(max(demands.values())):
                for queue in (q for q, demand in demands.items() if trial.made[q] <= nth < demand):
                    _post(server, _workload(f"{trial.tag}{queue}"))
            trial.made |= Counter(demands)
            trial.begun_s = time.monotonic()
            return True
    return False


def _look(server: Server, by_tag: Mapping[str, Trial]) -> None:
    """Count the admitted Workloads, and replace those that were evicted."""
    runs: dict[str, Counter[str]] = {tag: Counter() for tag in by_tag}
    for each in server.get(f"{_WORKLOADS}?limit=20000")["items"]:
        tag, _, queue = each["spec"]["queueName"].partition("-")
        trial, state = by_tag.get(f"{tag}-"), each.get("status", {})
        if trial is None:
            continue  # of an earlier test
        met = _met(state)
        if "Evicted" in met and "admission" in state:
            trial.evicted[queue] += 1
            server.ask("DELETE", f"{_WORKLOADS}/{each['metadata']['name']}")
            _post(server, _workload(each["spec"]["queueName"]))
        runs[trial.tag][queue] += "Admitted" in met and "Evicted" not in met
    for tag, found in runs.items():
        by_tag[tag].runs = +found


def _post(server: Server, raw: dict[str, Any]) -> None:
    namespace = raw["metadata"].get("namespace")
    plural = kueue.PLURALS.get(raw["kind"], "workloads")
    within = f"namespaces/{namespace}/" if namespace else ""
    answer = server.ask("POST", f"{_API}/{within}{plural}", raw)
    assert answer.done or answer.status == 409, answer.text


def _workload(queue: str) -> dict[str, Any]:
    resources = {"requests": {names.RESOURCE_MILLI: str(tree.MILLI)}}
    spec = {
        "restartPolicy": "Never",
        "containers": [{"name": "main", "image": "none", "resources": resources}],
    }
    return {
        "apiVersion": kueue.API_VERSION,
        "kind": "Workload",
        "metadata": {"name": f"{queue}-{next(_NUMBERS)}", "namespace": NAMESPACE},
        "spec": {
            "queueName": queue,
            "podSets": [{"name": "main", "count": 1, "template": {"spec": spec}}],
        },
    }
