"""The real API server with all dialects on refuses pods that mix them, or that request what none of
them allocates. It does so in the scheduler's words."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, Final

import pytest

from gpuslice.contract import names
from gpuslice.contract.dialects import (
    DIALECTS,
    HAMI_GPU,
    HAMI_MEMORY,
    KAI,
    KAI_FRACTION,
    KAI_MEMORY,
    VOLCANO_MEMORY,
)
from lab.cluster.controlplane import ControlPlane
from tests.cluster.admission.judging import ALL_DIALECTS, rendered, tried, verdict
from tests.cluster.admission.requested import HALF, asking, of_volcano, pod
from tests.cluster.installing import serve
from tests.cluster.server import Answer, Server
from tests.support import until

pytestmark = pytest.mark.cluster

Json = dict[str, Any]
_POLICY: Final = "gpuslice-dialects"
_REQUESTS: Final = "gpuslice-requests"
_ALL_ON: Final = frozenset(each.name for each in DIALECTS)
LIMIT: Final = "nvidia.com/container.main.gpu-memory.limit"
_ORDERED: Final = {KAI_MEMORY: "1", KAI_FRACTION: "1", LIMIT: "1Gi"}


def of_kai(*containers: Json, **annotations: str) -> Json:
    asked = annotations or {KAI_FRACTION: "0.5"}
    return pod(*containers, scheduler=KAI.scheduler_name, annotations=asked)


def many(limits: Json, count: int) -> Json:
    return pod(*(asking(limits, f"c{number}") for number in range(count)))


MIXED: Final[dict[str, Json]] = {
    "Koordinator's and KAI's": of_kai(asking(HALF)),
    "Koordinator's and KAI's, of several keys": of_kai(asking(HALF), **_ORDERED),
    "Koordinator's and KAI's, by container": of_kai(asking(HALF), **{LIMIT: "1Gi"}),
    "Koordinator's and Volcano's": of_volcano(asking({**HALF, VOLCANO_MEMORY: 1024})),
    "Koordinator's and HAMi's": pod(asking(HALF), asking({HAMI_MEMORY: 3000}, "second")),
    "KAI's and Volcano's": of_kai(asking({VOLCANO_MEMORY: 1024})),
    "KAI's and HAMi's": of_kai(asking({HAMI_MEMORY: 3000})),
    "Volcano's and HAMi's": pod(
        asking({HAMI_GPU: 1, HAMI_MEMORY: 1}, "first", init=True), asking({VOLCANO_MEMORY: 1})
    ),
    "three": of_kai(asking(HALF), asking({VOLCANO_MEMORY: 1}, "second")),
}
FOREIGN: Final[dict[str, Json]] = {
    "another container's GPU": pod(asking(HALF), asking({HAMI_GPU: 2}, "other")),
    "what Koordinator alone allocates": pod(asking({**HALF, "koordinator.sh/rdma": 100})),
    "its old name": pod(asking({**HALF, "kubernetes.io/rdma": 100})),
    "a GPU beside Volcano's": of_volcano(asking({VOLCANO_MEMORY: 1, HAMI_GPU: 1})),
    "another vendor's GPU beside KAI's": of_kai(asking({"amd.com/gpu": 1})),
    "an FPGA beside HAMi's": pod(asking({HAMI_GPU: 1, "kubernetes.io/fpga": 1})),
    "an NPU beside HAMi's": pod(asking({HAMI_MEMORY: 1, "huawei.com/npu-core": 1})),
    "33 shares": many(HALF, 33),
    "33 shares of HAMi's": many({HAMI_GPU: 1}, 33),
}
RIGHT: Final[dict[str, Json]] = {
    "Koordinator's": pod(asking(HALF)),
    "KAI's": of_kai(),
    "Volcano's": of_volcano(asking({VOLCANO_MEMORY: 1024})),
    "Volcano's, by gpuslice's scheduler": pod(asking({VOLCANO_MEMORY: 1024})),
    "HAMi's": pod(asking({HAMI_GPU: 1, HAMI_MEMORY: 3000})),
    "whole GPUs": of_kai(asking({HAMI_GPU: 2}), note="x"),
    "zero of another": pod(asking({**HALF, VOLCANO_MEMORY: 0, HAMI_MEMORY: 0})),
    "KAI's annotations under another scheduler": pod(
        asking(HALF), annotations={KAI_FRACTION: "0.5"}
    ),
    "32 shares": many(HALF, 32),
}


def refused(server: Server, raw: Json) -> Answer:
    answer = tried(server, raw)
    assert (answer.status, answer.policy) == (422, _POLICY), answer.body
    assert answer.text == verdict(raw, _ALL_ON)
    return answer


@pytest.fixture(scope="module", autouse=True)
def all_on(installed: ControlPlane, server: Server) -> Iterator[None]:
    installed.apply_json(*rendered(ALL_DIALECTS, _POLICY, _REQUESTS))
    until(
        lambda: tried(server, RIGHT["Volcano's, by gpuslice's scheduler"]).done,
        "all dialects are on",
    )
    core_alone = pod(asking({names.RESOURCE_CORE: 1}))
    until(lambda: tried(server, MIXED["three"]).policy == _POLICY, f"{_POLICY} is in force")
    until(lambda: tried(server, core_alone).policy == _REQUESTS, f"{_REQUESTS} is in force")
    yield
    serve(installed)
    until(
        lambda: not tried(server, RIGHT["Volcano's, by gpuslice's scheduler"]).done,
        "one dialect is on",
    )


@pytest.mark.parametrize("what", MIXED)
def test_two_dialects_are_refused_naming_both_keys(server: Server, what: str) -> None:
    answer = refused(server, MIXED[what])
    assert answer.text.endswith("requests shares of GPUs in one dialect; remove one of them")


@pytest.mark.parametrize("what", FOREIGN)
def test_what_no_dialect_allocates_is_refused(server: Server, what: str) -> None:
    refused(server, FOREIGN[what])


@pytest.mark.parametrize("what", RIGHT)
def test_one_dialect_passes(server: Server, what: str) -> None:
    answer = tried(server, RIGHT[what])
    assert answer.done, answer.text
    assert verdict(RIGHT[what], _ALL_ON) == ""


def test_the_api_server_and_the_scheduler_agree(server: Server) -> None:
    """They agree on random mixes of valid amounts. The texts are equal where there is one error."""
    chance = random.Random(1)
    keys = (*HALF, VOLCANO_MEMORY, HAMI_GPU, HAMI_MEMORY, "amd.com/gpu", "cpu")
    accepted = same = 0
    for _ in range(200):
        made = [
            asking(dict.fromkeys(chance.sample(keys, chance.choice((0, 1, 1, 2))), 1), f"c{n}")
            for n in range(chance.choice((1, 2)))
        ]
        scheduler = chance.choice((names.SCHEDULER_NAME, KAI.scheduler_name))
        annotations = chance.choice(({}, {}, {}, {KAI_MEMORY: "1"}))
        raw = pod(*made, scheduler=scheduler, annotations=annotations)
        answer, said = tried(server, raw), verdict(raw, _ALL_ON)
        with_core_alone = answer.policy == _REQUESTS
        kai_and_whole = said == "cannot request both GPU and GPU memory"
        assert answer.done == (said == "") or kai_and_whole, (answer.text, said, raw)
        accepted += answer.done
        same += answer.text == said
        assert answer.done or with_core_alone or answer.policy == _POLICY, answer.body
    assert accepted > 20
    assert same > 50
