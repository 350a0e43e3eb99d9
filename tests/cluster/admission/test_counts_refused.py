"""A share without its count is refused before Kubernetes 1.36, without mutating policies."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pytest

from gpuslice.contract import names
from lab.cluster.controlplane import ControlPlane
from lab.cluster.manifests import STOCK
from tests.cluster.admission.counting import counting, missing, queues, set_sizes, with_counts
from tests.cluster.admission.judging import DRY, PODS, tried
from tests.cluster.server import Json, Server
from tests.requests.koordinator_rows import MEM, G
from tests.requests.pods import HALF, asking, container, pod, workloads
from tests.requests.rows import GPU

pytestmark = pytest.mark.cluster

KAI, KUEUE = names.LABEL_KAI_QUEUE, names.LABEL_KUEUE_QUEUE
_WHY: Final = ", as Kubernetes before 1.36 does not write it"
_QUEUE: Final = f"metadata.labels[{KUEUE}]: must be test"


@pytest.fixture(scope="module", autouse=True)
def on(installed: ControlPlane, server: Server) -> Iterator[None]:
    with queues(installed, server):
        set_sizes(server, "1024,40960", "1000")
        yield


def _two(**labels: str) -> Json:
    """Return a pod with two shares and a container without one."""
    shares = asking({G: 30}), asking({MEM: "20Gi"}, "first", init=True)
    return pod(*shares, container("second"), labels=labels)


_COUNTS: Final = {"main": "300", "first": "500"}
_BOTH: Final = f"{missing('first', '500')}; {missing('main', '300')}"


def test_the_text_has_what_to_write(server: Server) -> None:
    for raw, says in (
        (_two(), f"{_BOTH}{_WHY}"),
        (_two(**{KAI: "test"}), f"{_BOTH}; {_QUEUE}{_WHY}"),
        (with_counts(_two(**{KAI: "test"}), _COUNTS), f"{_QUEUE}{_WHY}"),
        (pod(asking({GPU: 2})), f"{missing('main', '2000')}{_WHY}"),
    ):
        answer = counting(server, raw)
        assert (answer.policy, answer.text) == ("gpuslice-queues", says)
        assert tried(server, raw).done
    for raw in (
        with_counts(_two(), _COUNTS),
        with_counts(_two(**{KAI: "test", KUEUE: "test"}), _COUNTS),
        pod(container(), labels={KAI: "test"}),
        pod(container(), scheduler=STOCK),
    ):
        assert counting(server, raw).done


def test_a_wrong_count_is_refused(server: Server) -> None:
    raw = pod(asking(HALF), asking({G: 30}, "second"), container("third"))
    right = {"main": "500", "second": "0.3k"}
    assert counting(server, with_counts(raw, right)).done
    field = f"resources.limits[{names.RESOURCE_MILLI}]"
    for wrong, says in (
        ({"main": "499"}, f"container main: {field}: invalid value 499: must be 500"),
        ({"second": "1k"}, f"container second: {field}: invalid value 1k: must be 300"),
        ({"third": "5"}, f"container third: {field}: invalid value 5: must be absent"),
    ):
        answer = counting(server, with_counts(raw, right | wrong))
        assert (answer.policy, answer.text) == ("gpuslice-queues", says + _WHY)


def test_controllers_may_create_pods_with_the_count_of_their_template(server: Server) -> None:
    """The count of a template is not right for a new one after the sizes have changed."""
    raw = with_counts(pod(asking({MEM: "20Gi"})), {"main": "87"})
    path = PODS.replace("/default/", "/counted/") + DRY
    for user, is_refused in (
        ("system:serviceaccount:kube-system:job-controller", False),
        ("system:kube-controller-manager", False),
        ("tenant", True),
    ):
        answer = server.ask("POST", path, raw, user=user, group="system:masters")
        assert (answer.policy == "gpuslice-queues") == is_refused, answer.text


@pytest.mark.parametrize("kind", workloads(pod()))
def test_a_template_is_refused_as_its_pods(server: Server, kind: str) -> None:
    path, workload = workloads(pod(asking(HALF)))[kind]
    assert counting(server, workload, path).text == f"{missing('main', '500')}{_WHY}"
    path, workload = workloads(with_counts(pod(asking(HALF)), {"main": "500"}))[kind]
    assert counting(server, workload, path).done


def test_a_workload_from_before_can_be_scaled(server: Server, installed: ControlPlane) -> None:
    """Only a change of the template is judged."""
    path, workload = workloads(pod(asking(HALF)))["Deployment"]
    namespace = "/api/v1/namespaces/counted"
    path = path.replace("/default/", "/counted/")
    labels = {"metadata": {"labels": {names.LABEL_QUEUES: "true"}}}
    assert server.patch(namespace, {"metadata": {"labels": {names.LABEL_QUEUES: None}}}).done
    made = server.ask("POST", path, workload)
    assert server.patch(namespace, labels).done
    assert made.done and server.patch(f"{path}/w", {"spec": {"replicas": 0}}).done
    changed = {"spec": {"template": {"metadata": {"annotations": {"a": "b"}}}}}
    assert server.patch(f"{path}/w", changed).policy == "gpuslice-queues"
    server.remove(f"{path}/w")
