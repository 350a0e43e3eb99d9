"""Simulated placement and its reasons: the account, and the command that prints it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from scheduler.core.place import Peak, Placement, Share
from scheduler.core.request import Policy
from scheduler.decisions import simulate
from scheduler.decisions.simulate import SimulationError
from scheduler.kubernetes import binding
from tests.scheduler import commands
from tests.scheduler.objects import Gi, container, device, gpu, lease, node, pod


def kind(of: str, raw: dict[str, Any]) -> dict[str, Any]:
    return {**raw, "kind": of}


def a_node(name: str, *gpus: dict[str, Any]) -> list[dict[str, Any]]:
    return [kind("Node", node(name)), kind("Device", device(name, *gpus))]


FLEET = [
    *a_node("n1", gpu("GPU-a", 0), gpu("GPU-b", 1)),
    *a_node("n2", gpu("GPU-c", 0, "8Gi")),
    *a_node("n10", gpu("GPU-d", 0, "8Gi")),
    kind("Node", node("n3")),
]
HALF = kind("Pod", pod(container("main", ratio=50, core=50)))


def test_a_pod_is_placed_on_the_best_node_with_reasons_for_the_others() -> None:
    state = simulate.fleet(FLEET)
    asked = kind("Pod", pod(container("main", memory="12Gi")))
    account = simulate.simulate(state, asked)
    assert account.placed and account.pod == "default/pod-u-1"
    (best,) = account.candidates
    assert best.node == "n1"
    assert [(s.minor, s.uuid, s.memory_bytes) for s in best.containers] == [
        (0, "GPU-a", 12 * 2**30)
    ]
    assert [(each.text, each.nodes) for each in account.refused] == [
        ("every GPU is smaller than the requested memory", ["n10", "n2"]),
        ("node has no GPU inventory (Device object)", ["n3"]),
    ]


def test_the_next_pod_sees_the_one_before() -> None:
    state = simulate.fleet(a_node("n1", gpu("GPU-a", 0)))
    placed = [simulate.simulate(state, HALF, number).placed for number in range(3)]
    assert placed == [True, True, False]


def test_pods_that_are_bound_hold_what_they_have() -> None:
    there = Placement(
        "n1", (Share("main", "GPU-a", 0, Gi, None),), (Peak("GPU-a", 0, Gi, 4, None),)
    )
    bound = pod(container("main", ratio=50), node="n1", annotations=binding.annotations_of(there))
    state = simulate.fleet([*FLEET, kind("Pod", bound)])
    assert [holder.pod_key for holder in state.holders("n1")] == ["default/pod-u-1"]


def test_spreading_prefers_the_emptier() -> None:
    state = simulate.fleet(a_node("n1", gpu("GPU-a", 0), gpu("GPU-b", 1)))
    used = [
        simulate.simulate(state, HALF, number, Policy.SPREAD).candidates[0].containers[0].uuid
        for number in range(2)
    ]
    assert used == ["GPU-a", "GPU-b"]


def test_leases_count_where_there_are_any() -> None:
    """Without a time of renewal a Lease is expired."""
    unsaid = lease("n2")
    del unsaid["spec"]
    leases: list[dict[str, Any]] = [lease("n1"), unsaid, {}]
    account = simulate.simulate(
        simulate.fleet([*FLEET, *(kind("Lease", each) for each in leases)]), HALF
    )
    assert [each.node for each in account.candidates] == ["n1"]
    refused = {each.text: each.nodes for each in account.refused}
    assert refused["GPU node agent has not renewed its Lease"] == ["n2"]
    assert refused["no GPU node agent has reported"] == ["n10"]


@pytest.mark.parametrize(
    ("now", "expired"),
    [
        (datetime(2026, 1, 1, 0, 0, 45, tzinfo=UTC), ["n10", "n2", "n3"]),
        (datetime(2025, 12, 31, tzinfo=UTC), ["n3"]),
        (datetime(2026, 1, 1, 0, 5, tzinfo=UTC), ["n1", "n10", "n2", "n3"]),
        (None, ["n10", "n2", "n3"]),
    ],
)
def test_nodes_whose_agents_leases_expired_are_left_out(now: datetime | None, expired: Any) -> None:
    """Expiry counts from the last renewal: a file has no other time."""
    leases = [lease("n1", 58), lease("n2", 4), lease("n10", 4), lease("n3")]
    leases[3]["spec"]["renewTime"] = "?"
    devices = [kind("Device", device("n3", gpu("GPU-e", 0)))]
    found = [*FLEET, *devices, *(kind("Lease", each) for each in leases)]
    account = simulate.simulate(simulate.fleet(found, now.timestamp() if now else None), HALF)
    refused = {each.text: each.nodes for each in account.refused}
    assert refused == {"GPU node agent has not renewed its Lease": expired}


def test_an_invalid_request_is_refused_on_every_node() -> None:
    account = simulate.simulate(simulate.fleet(FLEET), kind("Pod", pod(container("main", gpu=150))))
    assert not account.placed
    assert account.error is not None and account.error.startswith(
        "container main: koordinator.sh/gpu: invalid value 150: must be"
    )


def test_a_pod_without_a_share_may_be_placed_anywhere() -> None:
    account = simulate.simulate(simulate.fleet(FLEET), kind("Pod", pod(container("main"))))
    assert account.placed and not account.requests_share


@pytest.mark.parametrize("owner", ["Deployment", "Job", "CronJob", "PodTemplate"])
def test_a_workload_is_simulated_by_its_template(owner: str) -> None:
    template = {"metadata": {"labels": {}}, "spec": HALF["spec"]}
    spec: dict[str, Any] = {"template": template}
    made: dict[str, Any] = {"kind": owner, "metadata": {"name": "web"}}
    if owner == "PodTemplate":
        made["template"] = template
    else:
        made["spec"] = {"jobTemplate": {"spec": spec}} if owner == "CronJob" else spec
    (asked,) = simulate.pods([made])
    account = simulate.simulate(simulate.fleet(FLEET), asked)
    assert account.pod == "default/web" and account.placed


def test_lists_are_what_is_in_them() -> None:
    listed = {"kind": "List", "items": FLEET}
    asked = pod(container("main"))
    typed = {"kind": "PodList", "items": [asked]}
    assert list(simulate.objects([listed, None, typed])) == [*FLEET, kind("Pod", asked)]


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: list(simulate.objects([{"a": 1}])), "kind: must be"),
        (lambda: simulate.fleet([HALF]), "must have a Node"),
        (lambda: simulate.pods([{"kind": "Service"}]), "must have a Pod"),
        (lambda: simulate.pods([{"kind": "Job"}]), "Job.template: must be"),
        (
            lambda: simulate.pods([{"kind": "CronJob", "spec": {"jobTemplate": 5}}]),
            "CronJob.template: must be",
        ),
    ],
)
def test_unusable_objects_are_refused_with_the_reason(call: Any, text: str) -> None:
    with pytest.raises(SimulationError, match=text):
        call()


# --- the command ---------------------------------------------------------------------------------


Ask = Callable[..., commands.Done]


@pytest.fixture
def ask(tmp_path: Path) -> Ask:
    """The command, with the pods by standard input and the fleet in a file; written: as that."""

    def run(
        *arguments: str,
        pods: Sequence[dict[str, Any]] = (HALF,),
        fleet: Sequence[dict[str, Any]] = FLEET,
        written: bytes = b"",
    ) -> commands.Done:
        (tmp_path / "fleet.yaml").write_bytes(written or yaml.safe_dump_all(fleet).encode())
        options = ("-f", "-", "--fleet", str(tmp_path / "fleet.yaml"), *arguments)
        return commands.run("simulate", *options, given=yaml.safe_dump_all(pods))

    return run


def test_the_table_names_node_gpu_and_share(ask: Ask) -> None:
    done = ask()
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    assert lines[0] == "default/pod-u-1: n10"
    assert lines[1].split() == ["node", "score", "container", "gpu", "memory", "core"]
    assert lines[2].split()[0] == "n10"
    assert lines[2].split()[2:] == ["main", "0", "GPU-d", "4", "GiB", "50", "%"]
    assert lines[-1] == "  1 node: node has no GPU inventory (Device object): n3"


def test_json_is_for_programs(ask: Ask) -> None:
    first, second = json.loads(ask("--json", "--copies", "2").stdout)
    assert first["node"] == second["node"] == "n10"
    share = {"container": "main", "minor": 0, "uuid": "GPU-d", "memory_bytes": 4 << 30}
    assert first["candidates"][0]["containers"] == [{**share, "core_percent": 50}]


def test_where_no_node_fits_the_exit_status_is_1(ask: Ask) -> None:
    done = ask(pods=[kind("Pod", pod(container("main", memory="100Gi")))])
    assert done.exit_code == 1
    first, second, *_ = done.stdout.splitlines()
    assert first == "default/pod-u-1: no node has enough free GPU capacity"
    assert second.startswith("  3 nodes: every GPU is")
    refused = kind("Pod", pod(container("main", gpu=150)))
    done = ask(pods=[refused, kind("Pod", pod(container("main")))])
    assert done.exit_code == 1
    assert "refused, on every node" in done.stdout and "fits on any node" in done.stdout


def test_many_candidates_are_cut_and_counted_and_without_a_terminal_no_name_is(ask: Ask) -> None:
    uuid = "GPU-0b1c2d3e-4f50-6172-8394-a5b6c7d8e9f{:x}"
    fleet = [each for n in range(14) for each in a_node(f"{n:040}", gpu(uuid.format(n), 0))]
    done = ask(fleet=fleet)
    assert "and 4 more" in done.stdout
    (row,) = [line for line in done.stdout.splitlines() if uuid.format(0) in line]
    assert row.split()[-2:] == ["50", "%"]


@pytest.mark.parametrize("written", [b"kind: \xff", b"a: [", b"a: 2026-99-99"])
def test_a_file_that_cannot_be_read_is_named(ask: Ask, tmp_path: Path, written: bytes) -> None:
    done = ask(written=written)
    assert done.exit_code == 2
    assert done.stderr.startswith(f"simulate: {tmp_path}/fleet.yaml: ")


def test_without_a_fleet_the_exit_status_is_2(tmp_path: Path) -> None:
    (tmp_path / "pod.yaml").write_text(yaml.safe_dump(HALF))
    for arguments in ((), ("--fleet", str(tmp_path / "none.yaml"))):
        done = commands.run("simulate", "-f", str(tmp_path / "pod.yaml"), *arguments)
        assert done.exit_code == 2
        assert done.stderr.startswith("simulate: ")


def test_pods_of_other_dialects_are_placed_where_these_are_on(ask: Ask) -> None:
    asked = {"name": "main", "resources": {"limits": {"volcano.sh/gpu-memory": 1024}}}
    raw = kind("Pod", pod(asked))
    raw["spec"]["schedulerName"] = "volcano"
    done = ask("--dialects", "koordinator,volcano", pods=[raw])
    assert done.exit_code == 0, done.stdout
    off = ask(pods=[raw])
    assert off.exit_code == 1
    assert "set dialects.volcano.enabled to true" in off.stdout
