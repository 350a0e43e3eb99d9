"""A fleet of nodes with GPUs, and the backlog of its waiting pods."""

from __future__ import annotations

import json
from typing import Any

from scheduler.core.place import Placement
from scheduler.decisions.backlog import Backlog
from scheduler.decisions.nomination import Nomination, When
from scheduler.decisions.verbs import Verbs
from scheduler.kubernetes.waiting import waiting
from tests.scheduler import calls, objects
from tests.scheduler.calls import arguments, names

OURS = [
    {
        "manager": "gpuslice-scheduler",
        "subresource": "status",
        "fieldsV1": {"f:status": {"f:nominatedNodeName": {}}},
    }
]
TINY = objects.container("main", core=1, ratio=1)


class Cluster:
    """Nodes with GPUs, and a backlog of pods of one kind. time is the test's."""

    def __init__(self, when: When = When.ALWAYS, nodes: int = 6, gpus: int = 2) -> None:
        self.now_s = 100.0
        self.state = calls.state(nodes, gpus)
        self.backlog = Backlog(self.state, lambda: self.now_s, when)
        self.verbs = Verbs(self.state, backlog=self.backlog)
        self.nodes = nodes

    def comes(self, uid: str, *containers: Any, priority: int = 0, **fields: Any) -> dict[str, Any]:
        raw = calls.pod(uid, *containers)
        raw["spec"] |= {"priority": priority, **fields.pop("spec", {})}
        for key, more in fields.items():
            raw[key] |= more
        self.backlog.observe(waiting(raw))
        return raw

    def many(self, count: int, *containers: Any, **fields: Any) -> list[dict[str, Any]]:
        return [self.comes(f"p{number}", *containers, **fields) for number in range(count)]

    def tries(self, raw: dict[str, Any], *among: str) -> list[str]:
        answer = json.loads(self.verbs.filter(arguments(raw, among or names(self.nodes))))
        found = answer["NodeNames"]
        assert isinstance(found, list)
        return found

    def reserved(self, raw: dict[str, Any], node: str | None) -> Placement | None:
        pending = waiting(raw).pending
        assert node is not None and pending.request is not None
        return self.state.reservations.placement(pending.uid, pending.request, node)

    def plan(self, most: int = 1000) -> list[Nomination]:
        return list(self.backlog.plan(most, lambda: False))

    def planned(self, most: int = 1000) -> dict[str, str | None]:
        return {each.pending.uid: each.node for each in self.plan(most)}

    def tried_first(self, *containers: Any) -> None:
        """kube-scheduler has tried one pod of the kind, which then left."""
        self.tries(self.comes("first", *containers))
        self.state.reservations.end("first")
        self.backlog.remove("first")
