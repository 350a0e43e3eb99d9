"""Koordinator's names on nodes that serve claims: kube-scheduler as it comes, the chart's policies
and the controller of templates with its own rights. The test itself writes the slices."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from gpuslice.contract import names
from gpuslice.contract.dialects import HAMI_MEMORY, HAMI_PRIORITY, KAI_FRACTION, VOLCANO_VGPU_CORES
from lab.cluster import manifests
from lab.cluster.controlplane import ControlPlane
from lab.cluster.fleet_objects import Gpu, Node, node_json, slice_json
from lab.cluster.manifests import KOORDINATOR, STOCK
from lab.cluster.supervised import Process
from scheduler.claims import templates
from tests.cluster.admission.judging import MUTATES, tried
from tests.cluster.running import Pods
from tests.cluster.server import Answer, Json, Server
from tests.requests.pods import asking, container, pod
from tests.support import ROOT, until

pytestmark = pytest.mark.cluster

_CLAIMS: Final = "--set=frontEnd=claims"
_SIZES: Final = {"small": (23040, 23040), "large": (81920,)}
"""The GPUs' sizes in MiB, by node."""
_GPU: Final = names.RESOURCE_GPU


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    directory = tmp_path_factory.mktemp("claims")
    with ControlPlane(directory / "plane") as started:
        started.install_kinds()
        started.apply_json(*manifests.serving([names.SCHEDULER_NAME], _CLAIMS, MUTATES))
        for name, sizes in _SIZES.items():
            gpus = (Gpu(f"GPU-{name}-{at}", at, size << 20) for at, size in enumerate(sizes))
            node = Node(name, tuple(gpus))
            raw = node_json(node)
            for kind in ("capacity", "allocatable"):
                raw["status"][kind] = {"cpu": "64", "memory": "512Gi", "pods": "250"}
            started.kubectl("create", "-f", "-", given=json.dumps(raw))
            started.kubectl("create", "-f", "-", given=json.dumps(slice_json(node)))
        account = started.service_account_kubeconfig(names.NAMESPACE, names.CLAIM_TEMPLATES)
        manager: list[str | Path] = [
            *(started.programs.kube_controller_manager, "--leader-elect=false", "--secure-port=0"),
            f"--kubeconfig={started.kubeconfig()}",
            "--controllers=resourceclaim-controller",
        ]
        ours = [
            sys.executable,
            "-m",
            "scheduler",
            "serve",
            "--claim-templates",
            f"--kubeconfig={account}",
        ]
        programs = [
            Process(manager, directory / "manager.log", started.environ()),
            Process(ours, directory / "claim-templates.log", started.environ()),
            started.start_kube_scheduler(),
        ]
        try:
            with Server(started) as api:
                asked = _stock(asking({_GPU: 50}))
                until(lambda: "resourceClaims" in tried(api, asked).body["spec"], "it is moved")
            yield started
        finally:
            for each in programs:
                each.kill()


@pytest.fixture(scope="module")
def server(plane: ControlPlane) -> Iterator[Server]:
    with Server(plane) as api:
        yield api


def _stock(*containers: Json, **metadata: Any) -> Json:
    return pod(*containers, scheduler=STOCK, **metadata)


def _held(plane: ControlPlane, name: str) -> list[tuple[str, str, str, str]]:
    """Return the claim, the GPU, memory and core of each share that a bound pod holds."""
    claims = json.loads(plane.kubectl("get", "resourceclaims", "-o", "json"))["items"]
    return sorted(
        (
            claim["metadata"]["annotations"]["resource.kubernetes.io/pod-claim-name"],
            f"{result['pool']}/{result['device']}",
            result["consumedCapacity"][names.CAPACITY_MEMORY],
            result["consumedCapacity"][names.CAPACITY_CORE],
        )
        for claim in claims
        if claim["metadata"]["ownerReferences"][0]["name"] == name
        for result in claim["status"]["allocation"]["devices"]["results"]
    )


def test_koordinators_pod_gets_its_share_of_kube_scheduler(plane: ControlPlane) -> None:
    """The pod is Koordinator's example, unmodified but for its schedulerName."""
    text = (ROOT / "docs/examples/koordinator/pod-example.yaml").read_text()
    raw = yaml.safe_load(text.replace("koord-scheduler", STOCK))
    with Pods(plane) as pods:
        bound = pods.bound(pods.add(raw))
        ((claim, gpu, memory, core),) = _held(plane, raw["metadata"]["name"])
        assert (claim, core) == ("gpuslice-curlimage", "50")
        sizes = _SIZES[gpu.partition("/")[0]]
        assert memory == {23040: "11520Mi", 81920: "40Gi"}[sizes[0]]
        (only,) = bound["spec"]["containers"]
        assert only["resources"]["limits"].keys() == {"cpu", "memory"}
        (template,) = (
            each["resourceClaimTemplateName"] for each in bound["spec"]["resourceClaims"]
        )
        assert template == "gpuslice-c50-r50"


def test_each_container_gets_what_it_asks(plane: ControlPlane) -> None:
    """The pod names gpuslice's scheduler, which is not installed here."""
    asked = pod(
        asking({_GPU: 10}, name="init", init=True),
        asking({names.RESOURCE_MEMORY: "3Gi"}, name="bytes"),
        asking(
            {names.RESOURCE_SHARED: 2, names.RESOURCE_CORE: 20, names.RESOURCE_MEMORY_RATIO: 40},
            name="both",
        ),
        container(name="none"),
    )
    with Pods(plane) as pods:
        bound = pods.bound(pods.add(asked))
        held = _held(plane, "p")
        assert [(claim, memory, core) for claim, _, memory, core in held] == [
            ("gpuslice-both", "4608Mi", "10"),
            ("gpuslice-both", "4608Mi", "10"),
            ("gpuslice-bytes", "3Gi", "0"),
            ("gpuslice-init", "2304Mi", "10"),
        ]
        assert {gpu for claim, gpu, *_ in held if claim == "gpuslice-both"} == {
            "small/gpu-0",
            "small/gpu-1",
        }
        assert "claims" not in bound["spec"]["containers"][2]["resources"]


def test_a_whole_gpu_is_never_beside_a_share(plane: ControlPlane) -> None:
    with Pods(plane) as pods:
        names_of = [
            pods.add(_stock(asking({_GPU: percent}), name=f"w{at}"))
            for at, percent in enumerate((100, 100, 10))
        ]
        for each in names_of:
            pods.bound(each)
        used = [gpu for each in names_of for _, gpu, *_ in _held(plane, each)]
        assert len(set(used)) == 3


def test_a_pod_without_a_share_is_not_changed(server: Server) -> None:
    notes = {"gpu-memory": "about 3", "nvidia.com/container.x": "1"}
    for limits in ({"cpu": "1"}, {names.RESOURCE_NVIDIA_GPU: 1}):
        answer = tried(server, _stock(asking(limits), annotations=notes))
        assert answer.done and "resourceClaims" not in answer.body["spec"]
        assert "labels" not in answer.body["metadata"]
    long = tried(server, _stock(asking({_GPU: 50}, name="c" * 63)))
    assert [each["name"] for each in long.body["spec"]["resourceClaims"]] == ["gpuslice--0"]
    others = pod(asking({_GPU: 50}), scheduler=KOORDINATOR)
    assert "resourceClaims" not in tried(server, others).body["spec"]


def _bound_to(node: str) -> Json:
    raw = _stock(asking({_GPU: 50}))
    raw["spec"]["nodeName"] = node
    return raw


_INSTEAD: Final = "of a container, as the dialect"
_REFUSED: Final[dict[str, tuple[Json, str]]] = {
    "no memory": (
        _stock(asking({names.RESOURCE_CORE: 50})),
        "container main: resources: invalid value koordinator.sh/gpu-core=50: must be",
    ),
    "a part above one GPU": (
        _stock(asking({_GPU: 150})),
        "container main: koordinator.sh/gpu: invalid value 150: must be 1 to 100, or a multiple",
    ),
    "too much": (
        _stock(asking({names.RESOURCE_MEMORY: "8E"})),
        "container main: koordinator.sh/gpu-memory: invalid value 8000000000000000000: must be",
    ),
    "uneven": (
        _stock(asking({names.RESOURCE_SHARED: 3, names.RESOURCE_MEMORY_RATIO: 100})),
        "container main: koordinator.sh/gpu-memory-ratio: invalid value 100: must be a multiple",
    ),
    "a node": (
        _bound_to("small"),
        "spec.nodeName: invalid value small: must be empty in a pod that requests a share",
    ),
    "a hint": (
        _stock(asking({_GPU: 50}), annotations={names.ANNOTATION_POLICY: "spread"}),
        "metadata.annotations[gpuslice.io/policy]: must be absent, as kube-scheduler chooses",
    ),
    "a wrong policy": (
        _stock(asking({_GPU: 50}), annotations={names.ANNOTATION_COMPUTE: "x"}),
        "metadata.annotations[gpuslice.io/compute]: invalid value 'x': must be fair, capped,",
    ),
    "a wrong isolation": (
        _stock(asking({_GPU: 50}), labels={names.LABEL_ISOLATION_PROVIDER: "other"}),
        "metadata.labels[koordinator.sh/gpu-isolation-provider]: invalid value 'other': must be",
    ),
    "a whole GPU beside": (
        _stock(asking({_GPU: 50, names.RESOURCE_NVIDIA_GPU: 1})),
        "container main: nvidia.com/gpu: invalid value 1: must be absent in a pod that requests",
    ),
    "HAMi": (
        _stock(asking({HAMI_MEMORY: 3500})),
        "container main: nvidia.com/gpumem: invalid value 3500: must be"
        f" koordinator.sh/gpu-memory (bytes) {_INSTEAD} hami is off",
    ),
    "HAMi's priority": (
        _stock(asking({HAMI_PRIORITY: 1})),
        "container main: nvidia.com/priority: invalid value 1: must be absent, as the dialect hami",
    ),
    "Volcano": (
        _stock(asking({VOLCANO_VGPU_CORES: 30})),
        "container main: volcano.sh/vgpu-cores: invalid value 30: must be"
        f" koordinator.sh/gpu-core {_INSTEAD} volcano is off",
    ),
    "KAI": (
        _stock(annotations={KAI_FRACTION: "0.5"}),
        "metadata.annotations[gpu-fraction]: invalid value 0.5: must be"
        f" koordinator.sh/gpu-memory-ratio {_INSTEAD} kai is off",
    ),
}


@pytest.mark.parametrize("case", _REFUSED)
def test_what_claims_cannot_serve_is_refused_with_what_to_write(server: Server, case: str) -> None:
    raw, text = _REFUSED[case]
    until(lambda: not tried(server, _REFUSED["HAMi"][0]).done, "the policies are in force")
    assert text in tried(server, raw).text


def test_a_template_of_a_workload_is_judged_and_not_changed(server: Server) -> None:
    for limits, done in (({_GPU: 50}, True), ({_GPU: 150}, False), ({HAMI_MEMORY: 3500}, False)):
        labels = {"app": "a"}
        template = {"metadata": {"labels": labels}, "spec": _stock(asking(limits))["spec"]}
        spec = {"selector": {"matchLabels": labels}, "template": template}
        raw = {"metadata": {"name": "d"}, "spec": spec}
        answer = tried(server, raw, "/apis/apps/v1/namespaces/default/deployments")
        assert answer.done == done, answer.text
        if done:
            spec = answer.body["spec"]["template"]["spec"]
            assert (
                "resourceClaims" not in spec
                and _GPU in spec["containers"][0]["resources"]["limits"]
            )


def test_the_documents_policy_bounds_a_claims_size(plane: ControlPlane, server: Server) -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs/claims.md").read_text(), re.DOTALL)
    made = [each for block in blocks for each in yaml.safe_load_all(block)]
    plane.apply_json(*(e for e in made if "AdmissionPolicy" in e["kind"]))
    labels = {"gpu-claims": "small"}
    space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "t", "labels": labels}}
    plane.apply_json(space)
    (example,) = (each for each in made if each["kind"] == "ResourceClaimTemplate")

    def tried(spec: Json) -> Answer:
        path = "/apis/resource.k8s.io/v1/namespaces/t/resourceclaims?dryRun=All"
        return server.ask("POST", path, {"metadata": {"name": "c"}, "spec": spec})

    large, percent, all_of_it = (
        templates.template(name, [23040, 81920])
        for name in ("gpuslice-c10-m20481", "gpuslice-c10-r50", "gpuslice-c10-m20480")
    )
    assert large and percent and all_of_it
    until(lambda: tried(large["spec"]["spec"]).status == 422, "the policy is in force")
    for raw, done in ((example, True), (percent, False), (all_of_it, True)):
        answer = tried(raw["spec"]["spec"])
        assert answer.done == done, answer.text
    unbounded = {
        "devices": {
            "requests": [{"name": "gpu", "exactly": {"deviceClassName": names.DEVICE_CLASS}}]
        }
    }
    assert (
        tried(unbounded).text == "capacity.requests.memory: must be at most 20Gi in this namespace"
    )
