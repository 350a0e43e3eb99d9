"""Kubernetes' objects through the scheduler: a pod's request, and the cluster's objects.

Documented exception: RequestError, of a request. Invariants: an allocation is read back from its
annotations unchanged, it overcommits no GPU, and a deleted pod holds nothing.
"""

from __future__ import annotations

import copy
import json
from typing import Any, Final

import numpy as np

from gpuslice.contract import names
from scheduler.core.fit import fit
from scheduler.core.fleet import Fleet
from scheduler.core.place import Placement, place
from scheduler.decisions.state import Assumed, State
from scheduler.dialects.reading import RequestError
from scheduler.kubernetes import binding, requests, translate
from scheduler.kubernetes.leases import agent_lease
from tests.fuzz.choices import Choices
from tests.fuzz.documents import WORDS as DOCUMENT_WORDS
from tests.fuzz.documents import document, part_of, replace_one
from tests.scheduler import objects

WORDS: Final = (
    *DOCUMENT_WORDS,
    *(names.RESOURCE_GPU, names.RESOURCE_SHARED, names.ANNOTATION_ALLOCATE_HINT),
    *("selector", "matchExpressions", "requiredTopologyScope", "NUMANode", "initContainers"),
    *("requests", "limits", "restartPolicy", "Always", "topology", "nodeID", "pcieID", "health"),
)
_COLUMNS: Final = ("used_bytes", "used_core", "uncapped_shares")
_HELD: Final = objects.resources(memory="1Gi", core="50")
_GRANT: Final = {"id": "GPU-0", "minor": 0, "memory": 1 << 30, "core": 50}
_GRANTED: Final = {
    names.ANNOTATION_DEVICE_ALLOCATED: objects.allocated(("GPU-0", 0, _HELD)),
    names.ANNOTATION_GRANTS: json.dumps({"v": 1, "containers": {"main": [_GRANT]}}),
}


def cluster(data: bytes) -> None:
    choices = Choices(data)
    state = State()
    inventory = objects.device("n1", *(objects.gpu(f"GPU-{n}", n, "4Gi") for n in range(3)))
    state.observe_device(translate.device(_changed(inventory, choices)))
    state.observe_node(translate.node(_changed(objects.node("n1"), choices)))
    lease = agent_lease(_changed(objects.lease("n1"), choices))
    if lease is not None:
        state.observe_lease(lease, 0.0)
    main = objects.container("main", core=50, memory="1Gi")
    bound = objects.pod(main, uid="bound", node="n1", annotations=_GRANTED)
    before = copy.deepcopy(state.fleet)
    facts = translate.pod(_changed(bound, choices))
    state.observe_pod(facts)
    _ask(state, choices)
    state.remove_pod(facts.uid)
    state.remove_pod("asks")
    assert _held(state.fleet) == _held(before)


def _ask(state: State, choices: Choices) -> None:
    """A requesting pod, from its request to the read-back of its binding."""
    inits = [objects.container("first", choices.byte() % 2 == 0, ratio=choices.byte())]
    hint = {names.ANNOTATION_ALLOCATE_HINT: json.dumps({"gpu": document(choices)})}
    raw = _changed(
        objects.pod(
            objects.container("main", core=choices.byte(), memory=choices.whole(5)),
            objects.container("other", shared=choices.byte() % 4, ratio=choices.byte()),
            uid="asks",
            inits=inits if choices.byte() % 2 else (),
            annotations=hint if choices.byte() % 4 == 0 else {},
        ),
        choices,
    )
    try:
        request = requests.request(raw)
    except RequestError as error:
        assert str(error)
        request = None
    if request is None:
        return
    rows = state.fleet.rows_of(["n1"])
    possible, _ = fit(state.fleet, request, rows)
    found = place(state.fleet, request, int(rows[0]))
    assert bool(possible[0]) == isinstance(found, Placement)
    if not isinstance(found, Placement):
        return
    try:
        annotations = binding.annotations_of(found)
    except ValueError:
        # A container's name that the API server would have rejected.
        return
    state.assume("asks", Assumed(found, {}, 0.0))
    assert not [each for peak in found.peaks for each in state.problems() if peak.uuid in each.text]
    after = _held(state.fleet)
    metadata = {"uid": "asks", "annotations": dict(annotations)}
    spec = {**raw["spec"], "nodeName": "n1"}
    state.observe_pod(translate.pod({"metadata": metadata, "spec": spec}))
    assert _held(state.fleet) == after


def _held(fleet: Fleet) -> list[list[list[int]]]:
    return [np.asarray(getattr(fleet, name)).tolist() for name in _COLUMNS]


def _changed(right: dict[str, Any], choices: Choices) -> dict[str, Any]:
    """Return the object with one element replaced, or unchanged."""
    if choices.byte() % 4 == 0:
        return right
    right = json.loads(json.dumps(right))
    replace_one(part_of(right, choices, 8), choices)
    return right
