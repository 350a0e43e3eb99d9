"""The real API server judges requests in Volcano's resources, by the rules of its dialect."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, Final

import pytest

from gpuslice.contract.dialects import VOLCANO
from lab.cluster.controlplane import ControlPlane
from tests.cluster.admission.judging import DRY, enforced, tried, verdict
from tests.cluster.admission.requested import asking, container, of_volcano, pod, workloads
from tests.cluster.server import MERGE_PATCH, Server

pytestmark = pytest.mark.cluster

Json = dict[str, Any]
_POLICY: Final = "gpuslice-volcano"
_SEEDED: Final = 150
_ENABLED: Final = frozenset({VOLCANO.name})
MEMORY, NUMBER, VNUMBER, VMEMORY, PERCENT, CORES = VOLCANO.resources


@pytest.fixture(scope="module", autouse=True)
def in_force(installed: ControlPlane, server: Server) -> Iterator[None]:
    wrong = WRONG["too many GPUs"]
    with enforced(installed, server, _POLICY, "dialects.volcano.enabled=true", wrong):
        yield


WRONG: Final[dict[str, Json]] = {
    "bytes for MiB": of_volcano(asking({MEMORY: "8Gi"})),
    "few bytes for MiB": of_volcano(asking({VNUMBER: 1, VMEMORY: "64Mi"})),
    "more than any number": of_volcano(asking({MEMORY: "9223372036854775807"})),
    "too many GPUs": of_volcano(asking({NUMBER: 17})),
    "too many vGPUs": of_volcano(asking({VNUMBER: 17})),
    "too much memory of a vGPU": of_volcano(asking({VNUMBER: 1, VMEMORY: "1Pi"})),
    "over 100 percent": of_volcano(asking({VNUMBER: 1, PERCENT: 101})),
    "over 100 percent of the cores": of_volcano(asking({VNUMBER: 1, CORES: 200})),
    "no vGPU": of_volcano(asking({VNUMBER: 0, VMEMORY: 4096, CORES: 1})),
    "no vGPU, in percent": of_volcano(asking({VNUMBER: 0, PERCENT: 10})),
    "a percentage alone": of_volcano(asking({PERCENT: 50, CORES: 10})),
    "cores alone": of_volcano(container(), asking({CORES: 10}, "second")),
    "sharing and number": of_volcano(asking({NUMBER: 1, MEMORY: 1024})),
    "sharing and number of two containers": of_volcano(
        asking({NUMBER: 1}), asking({MEMORY: 1024}, "first", init=True)
    ),
    "sharing and vgpu": of_volcano(asking({MEMORY: 1}), asking({VMEMORY: 1}, "second")),
    "number and vgpu": of_volcano(asking({NUMBER: 1, VNUMBER: 1, CORES: 1})),
}
RIGHT: Final = [
    asking({MEMORY: 1024}),
    asking({NUMBER: 16}),
    asking({VMEMORY: 268435456}),
    asking({VNUMBER: 2, PERCENT: 100, CORES: 100, VMEMORY: 3}),
    asking({MEMORY: 0, CORES: 0, VNUMBER: 1}),
    asking({MEMORY: 0}),
]


@pytest.mark.parametrize("what", WRONG)
def test_a_malformed_request_is_refused_with_the_schedulers_message(
    server: Server, what: str
) -> None:
    answer = tried(server, WRONG[what])
    assert (answer.status, answer.policy) == (422, _POLICY), answer.body
    assert answer.text == verdict(WRONG[what], _ENABLED)


@pytest.mark.parametrize("limits", [{MEMORY: -5}, {MEMORY: "1500m"}, {VNUMBER: 1, CORES: "0.5"}])
def test_the_api_server_itself_refuses_what_is_no_number(server: Server, limits: Json) -> None:
    raw = of_volcano(asking(limits))
    answer = tried(server, raw)
    assert (answer.status, answer.policy) == (422, ""), answer.body
    assert verdict(raw, _ENABLED)


@pytest.mark.parametrize("container", RIGHT)
def test_requests_that_can_be_satisfied_are_admitted(server: Server, container: Json) -> None:
    raw = of_volcano(dict(container))
    answer = tried(server, raw)
    assert answer.done, answer.text
    assert verdict(answer.body, _ENABLED) == ""


def test_a_malformed_request_in_a_template_is_refused(server: Server) -> None:
    """It is refused on creation, and where an update changes the template."""
    for path, workload in workloads(WRONG["no vGPU"]).values():
        answer = server.ask("POST", path + DRY, workload)
        said = verdict(WRONG["no vGPU"], _ENABLED)
        assert (answer.text, answer.policy) == (said, _POLICY), answer.body
    path, workload = workloads(of_volcano(asking({MEMORY: 1})))["Deployment"]
    assert server.ask("POST", path, workload).done
    try:
        scaled = {"spec": {"replicas": 0}}
        assert server.ask("PATCH", f"{path}/w", scaled, MERGE_PATCH).done
        changed = {"spec": {"template": {"spec": WRONG["too many GPUs"]["spec"]}}}
        assert server.ask("PATCH", f"{path}/w{DRY}", changed, MERGE_PATCH).policy == _POLICY
    finally:
        server.ask("DELETE", f"{path}/w")


def test_pods_of_other_schedulers_are_not_judged(server: Server) -> None:
    raw = pod(asking({NUMBER: 17}), scheduler="default-scheduler")
    assert tried(server, raw).policy != _POLICY


_VALUES: Final[dict[str, tuple[object, ...]]] = {
    MEMORY: (0, 1, 1024, "8Gi", "100Mi", "2k"),
    NUMBER: (0, 1, 16, 17),
    VNUMBER: (0, 1, 2, 17),
    VMEMORY: (0, 1, 4096, "1Ti"),
    PERCENT: (0, 1, 100, 101),
    CORES: (0, 1, 100, 101),
}
_KINDS: Final = ((MEMORY,), (NUMBER,), (VNUMBER, VMEMORY, PERCENT, CORES), VOLCANO.resources)


def test_the_api_server_and_the_scheduler_agree(server: Server) -> None:
    """The messages are equal where there is one error. Of several each may report another first."""
    chance = random.Random(1)
    same = accepted = 0
    for _ in range(_SEEDED):
        kind = chance.choice(_KINDS)
        containers = []
        for number in range(chance.choice((1, 1, 2, 3))):
            keys = chance.sample(kind, chance.randint(0, len(kind)))
            asked = {key: chance.choice(_VALUES[key]) for key in keys}
            containers.append(asking(asked, f"c{number}", init=number == 2))
        raw = of_volcano(*containers)
        answer = tried(server, raw)
        assert answer.done == (verdict(raw, _ENABLED) == ""), (answer.text, raw)
        accepted += answer.done
        same += not answer.done and answer.text == verdict(raw, _ENABLED)
    assert accepted > _SEEDED // 10
    assert same > _SEEDED // 4
