"""Which bindings of admission policies are switched to Deny. Each is switched separately."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, Final

import pytest

from gpuslice.contract import names
from gpuslice.kube.errors import KubeError
from scheduler.admission import Admission, denial
from scheduler.metrics import Metrics

AUTO: Final = {names.LABEL_ADMISSION: names.ADMISSION_AUTO}


def binding(name: str, labels: object, actions: object) -> dict[str, Any]:
    metadata = {"name": name, "resourceVersion": "7", "labels": labels}
    return {"metadata": metadata, "spec": {"validationActions": actions}}


class Server:
    """An API server that refuses to change one binding, and has no gpuslice-c-warn."""

    def __init__(self, status: int = 403, refused: str = "gpuslice-a") -> None:
        self.changed: list[str] = []
        self._refused = {refused: status, "gpuslice-c-warn": 404}

    async def patch(self, path: str, body: Any, *, timeout_s: float = 0.0) -> Any:
        name = path.rpartition("/")[2]
        if name in self._refused:
            raise KubeError(self._refused[name], "Refused", f"cannot patch {name}")
        self.changed.append(name)
        return binding(name, AUTO, body["spec"].get("validationActions"))


@pytest.mark.parametrize(
    ("refused", "status", "rest"),
    [("a", 403, "b c b-warn"), ("a", 404, "b c b-warn"), ("a-warn", 403, "a b c b-warn")],
)
async def test_one_that_cannot_be_changed_leaves_the_others(
    refused: str, status: int, rest: str
) -> None:
    server = Server(status, f"gpuslice-{refused}")
    admission = Admission(server, lambda: True, Metrics())  # type: ignore[arg-type]
    for name in ("gpuslice-a", "gpuslice-b", "gpuslice-c"):
        admission.observed(binding(name, AUTO, ["Audit"]))
    with pytest.raises(KubeError, match=f"{refused}$") if status == 403 else nullcontext():
        await admission._enforce()
    assert server.changed == [f"gpuslice-{name}" for name in rest.split()]


async def test_a_binding_that_no_longer_exists_is_not_changed() -> None:
    server, ready = Server(), set[str]()
    admission = Admission(server, lambda: bool(ready), Metrics())  # type: ignore[arg-type]
    actions = {"b": ["Audit"], "c": ["Audit"], "d": ["Audit"], "e": ["Deny"], "f": None}
    for name, those in actions.items():
        admission.observed(binding(f"gpuslice-{name}", AUTO, those))
    admission.deleted(binding("gpuslice-c", AUTO, ["Audit"]))
    admission.listed({"gpuslice-b"})
    await admission._enforce()
    assert server.changed == [], "the installation does not work yet"
    ready.add("now")
    await admission._enforce()
    assert server.changed == ["gpuslice-b", "gpuslice-b-warn", "gpuslice-e-warn"]


def test_one_that_refuses_nothing_is_changed_by_its_version() -> None:
    for action in ("Audit", "Warn"):
        assert denial(binding("a", AUTO, [action])) == {
            "metadata": {"resourceVersion": "7"},
            "spec": {"validationActions": ["Deny"]},
        }


LEFT: Final[dict[str, tuple[object, object]]] = {
    "no label": (None, ["Warn"]),
    "another label": ({names.LABEL_PART_OF: names.PART_OF}, ["Warn"]),
    "another value": ({names.LABEL_ADMISSION: "off"}, ["Warn"]),
    "refuses already": (AUTO, ["Deny"]),
    "on trial": (AUTO, ["Warn", "Audit"]),
    "re-applied beside the scheduler's own": (AUTO, ["Audit", "Deny"]),
    "no actions": (AUTO, None),
}


@pytest.mark.parametrize("case", LEFT)
def test_an_operators_choice_is_left(case: str) -> None:
    assert denial(binding("a", *LEFT[case])) is None
