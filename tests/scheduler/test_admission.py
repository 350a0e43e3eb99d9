"""Which bindings of admission policies are switched to Deny. Each is switched separately."""

from __future__ import annotations

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
    """An API server that refuses to change the policy binding gpuslice-a."""

    def __init__(self) -> None:
        self.changed: list[str] = []

    async def patch(self, path: str, body: Any, *, timeout_s: float = 0.0) -> Any:
        name = path.rpartition("/")[2]
        if name == "gpuslice-a":
            raise KubeError(403, "Forbidden", f"cannot patch {name}")
        self.changed.append(name)
        return binding(name, AUTO, body["spec"]["validationActions"])


async def test_a_binding_that_cannot_be_changed_does_not_keep_others_from_refusing() -> None:
    server = Server()
    admission = Admission(server, lambda: True, Metrics())  # type: ignore[arg-type]
    for name in ("gpuslice-a", "gpuslice-b", "gpuslice-c"):
        admission.observed(binding(name, AUTO, ["Audit"]))
    with pytest.raises(KubeError, match="cannot patch gpuslice-a"):
        await admission._enforce()
    assert server.changed[:2] == ["gpuslice-b", "gpuslice-c"]


async def test_a_binding_that_no_longer_exists_is_not_changed() -> None:
    server = Server()
    admission = Admission(server, lambda: True, Metrics())  # type: ignore[arg-type]
    for name in ("gpuslice-b", "gpuslice-c", "gpuslice-d"):
        admission.observed(binding(name, AUTO, ["Audit"]))
    admission.deleted(binding("gpuslice-c", AUTO, ["Audit"]))
    admission.listed({"gpuslice-b"})
    await admission._enforce()
    assert {name.removesuffix("-warn") for name in server.changed} == {"gpuslice-b"}


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
