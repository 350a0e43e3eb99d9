"""The policies on pods of other request dialects, at the real API server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pytest

from gpuslice.contract import dialects, names
from lab.cluster.controlplane import ControlPlane
from lab.cluster.manifests import NAMES_POLICY, STOCK
from tests.cluster.admission.judging import ALL_DIALECTS, PODS, rendered, tried
from tests.cluster.admission.requested import asking, binding, container, pod
from tests.cluster.installing import serve
from tests.cluster.server import MERGE_PATCH, Server
from tests.support import until

pytestmark = pytest.mark.cluster

Json = dict[str, Any]
_POLICIES: Final = [
    f"gpuslice-{each}"
    for each in ("allocations", "dialects", "environment", "requests", "scheduler-names")
]
_FROM_MAP: Final = {"configMapKeyRef": {"name": "p-shared-gpu-0", "key": "x"}}
KAI, VOLCANO, HAMI = dialects.KAI, dialects.VOLCANO, dialects.HAMI


@pytest.fixture(scope="module", autouse=True)
def all_on(installed: ControlPlane, server: Server) -> Iterator[None]:
    installed.apply_json(*rendered(ALL_DIALECTS, *_POLICIES))
    until(lambda: _all_are_on(server), "each policy of the dialects is in force")
    yield
    serve(installed)


def _all_are_on(server: Server) -> bool:
    """The API server puts one policy in force after the other."""
    wrong = tried(server, volcano({"name": names.ENV_MEMORY_LIMIT, "value": "1"}))
    return (
        "volcano in a pod" in tried(server, volcano(scheduler=STOCK)).text
        and wrong.policy == "gpuslice-environment"
        and all(tried(server, made()).done for made in (kai, volcano, hami))
    )


def kai(*env: Json, scheduler: str = KAI.scheduler_name, **annotations: str) -> Json:
    asked = annotations or {dialects.KAI_FRACTION: "0.5"}
    return pod(container(env=list(env)), scheduler=scheduler, annotations=asked)


def volcano(*env: Json, scheduler: str = VOLCANO.scheduler_name) -> Json:
    return pod(asking({dialects.VOLCANO_MEMORY: 1024}, env=list(env)), scheduler=scheduler)


def hami(*env: Json) -> Json:
    return pod(asking({dialects.HAMI_GPU: 1, dialects.HAMI_MEMORY: 3000}, env=list(env)))


def koordinator(*env: Json) -> Json:
    return pod(asking({names.RESOURCE_CORE: 50, names.RESOURCE_MEMORY_RATIO: 50}, env=list(env)))


def test_what_their_webhooks_set_is_permitted_on_their_pods(server: Server) -> None:
    for dialect, made in ((KAI, kai), (VOLCANO, volcano), (HAMI, hami)):
        for name in dialect.webhook_environment:
            by_value, by_map = {"name": name, "value": "0"}, {"name": name, "valueFrom": _FROM_MAP}
            assert tried(server, made(by_value)).done, (dialect.name, name)
            assert tried(server, made(by_map)).done, (dialect.name, name)


@pytest.mark.parametrize(
    ("made", "name"),
    [
        (koordinator, names.ENV_VISIBLE_DEVICES),
        (hami, names.ENV_VISIBLE_DEVICES),
        (kai, dialects.HAMI_TASK_PRIORITY),
        (kai, names.ENV_MEMORY_LIMIT),
        (volcano, "LD_AUDIT"),
        (hami, f"{names.ENV_MEMORY_LIMIT}_0"),
    ],
)
def test_other_variables_and_variables_of_other_dialects_are_refused(
    server: Server, made: Any, name: str
) -> None:
    answer = tried(server, made({"name": name, "value": "1"}))
    assert (answer.status, answer.policy) == (403, "gpuslice-environment"), answer.body
    assert answer.text.startswith(f"container main: env {name}: invalid value '1': must be ")


def test_another_dialects_share_with_the_stock_scheduler_is_refused(server: Server) -> None:
    answer = tried(server, volcano(scheduler=STOCK))
    assert answer.policy == NAMES_POLICY, answer.body
    assert answer.text == (
        "schedulerName: invalid value 'default-scheduler': must be gpuslice-scheduler or"
        " kai-scheduler or volcano in a pod that requests a share of a GPU; default-scheduler would"
        " start it without a GPU"
    )


def test_pods_without_a_request_of_a_dialect_are_admitted(server: Server) -> None:
    """HAMi's pods name no scheduler: another policy gives them one."""
    assert tried(server, kai(scheduler=STOCK, mps="true")).done
    for elsewhere in (STOCK, names.SCHEDULER_NAME, "other"):
        raw = kai(scheduler=elsewhere)
        raw["metadata"]["annotations"] = {"gpu-memory": "16Gi", "gpu-fraction": "all"}
        assert tried(server, raw).done
    raw = hami()
    raw["spec"]["schedulerName"] = STOCK
    assert tried(server, raw).done


@pytest.mark.parametrize(
    ("made", "key"),
    [(kai, dialects.KAI_RECEIVED_TYPE), (volcano, dialects.VOLCANO_INDEX)],
)
def test_what_the_scheduler_writes_for_their_programs(
    installed: ControlPlane, server: Server, made: Any, key: str
) -> None:
    """A template or a copied pod may have it, and the Binding overwrites it; then it stays."""
    raw = made()
    raw["metadata"].setdefault("annotations", {})[key] = "old"
    assert server.ask("POST", PODS, raw).done
    at = f"{PODS}/p"
    try:
        with Server(installed, "scheduler") as scheduler:
            bound = binding("p", "n", {key: "new"})
            assert scheduler.ask("POST", f"{at}/binding", bound).done
        assert server.ask("GET", at).body["metadata"]["annotations"][key] == "new"
        for value in ("other", None):
            changed = {"metadata": {"annotations": {key: value}}}
            answer = server.ask("PATCH", at, changed, MERGE_PATCH)
            assert (answer.status, answer.policy) == (403, "gpuslice-allocations"), answer.body
            assert answer.text.startswith(f"metadata.annotations[{key}]: forbidden to ")
        beside = {"metadata": {"annotations": {"example.com/note": "x"}}}
        assert server.ask("PATCH", at, beside, MERGE_PATCH).done
    finally:
        server.ask("DELETE", f"{at}?gracePeriodSeconds=0")
