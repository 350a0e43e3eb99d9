"""Simulated placement and its reasons: the result, and the command that prints it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuslice.contract import names
from gpuslice.contract.dialects import DIALECTS
from scheduler.core.request import Policy
from scheduler.decisions import simulate
from scheduler.decisions.simulate import Account, SimulationError
from tests.scheduler import commands
from tests.scheduler.objects import allocated, container, device, gpu, lease, node, pod, resources

Json = dict[str, Any]


def kind(of: str, raw: Json) -> Json:
    return {**raw, "kind": of}


def asking(**amounts: object) -> Json:
    return kind("Pod", pod(container("main", False, **amounts)))


def a_node(name: str, *gpus: Json) -> list[Json]:
    return [kind("Node", node(name)), kind("Device", device(name, *gpus))]


TWO_GPUS = a_node("n1", gpu("GPU-a", 0), gpu("GPU-b", 1))
FLEET = [
    *TWO_GPUS,
    *a_node("n2", gpu("GPU-c", 0, "8Gi")),
    *a_node("n10", gpu("GPU-d", 0, "8Gi")),
    kind("Node", node("n3")),
]
HALF = asking(ratio=50, core=50)


def simulated(raw: Mapping[str, Any], *more: Json, now: datetime | None = None) -> Account:
    """Simulate a pod on FLEET. more: objects that are added to FLEET."""
    now_s = None if now is None else now.timestamp()
    return simulate.simulate(simulate.fleet([*FLEET, *more], now_s), raw)


@pytest.mark.parametrize(
    ("policy", "gpus"),
    [
        (Policy.BINPACK, ["GPU-a", "GPU-a", "GPU-b", "GPU-b", None]),
        (Policy.SPREAD, ["GPU-a", "GPU-b", "GPU-a", "GPU-b", None]),
    ],
)
def test_the_next_pod_sees_the_ones_before(policy: Policy, gpus: list[str | None]) -> None:
    state = simulate.fleet(TWO_GPUS)
    accounts = [simulate.simulate(state, HALF, number, policy) for number in range(5)]
    assert gpus == [
        each.candidates[0].containers[0].uuid if each.placed else None for each in accounts
    ]


def test_pods_that_are_bound_hold_what_they_have() -> None:
    held = {names.ANNOTATION_DEVICE_ALLOCATED: allocated(("GPU-a", 0, resources(memory="1Gi")))}
    bound = pod(container("main", ratio=50), node="n1", annotations=held)
    state = simulate.fleet([*FLEET, kind("Pod", bound)])
    assert [holder.pod_key for holder in state.holders("n1")] == ["default/pod-u-1"]


@pytest.mark.parametrize(
    ("now", "expired"),
    [
        (datetime(2026, 1, 1, 0, 0, 44, tzinfo=UTC), ["n3"]),
        (datetime(2026, 1, 1, 0, 0, 45, tzinfo=UTC), ["n2", "n3"]),
        (datetime(2025, 12, 31, tzinfo=UTC), ["n3"]),
        (datetime(2026, 1, 1, 0, 5, tzinfo=UTC), ["n1", "n2", "n3"]),
        (None, ["n2", "n3"]),
    ],
)
def test_nodes_with_expired_leases_are_left_out(now: datetime | None, expired: Any) -> None:
    """A file has no clock, so Leases expire relative to the last renewal in it, if no time is
    given. A Lease that has no readable time of renewal is expired. Without any Lease, all agents
    are ready."""
    leases: list[Json] = [lease("n1", 58), lease("n2", 4), lease("n3"), {}]
    leases[2]["spec"]["renewTime"] = "?"
    more = [kind("Device", device("n3", gpu("GPU-e", 0))), *(kind("Lease", raw) for raw in leases)]
    assert {each.text: each.nodes for each in simulated(HALF, *more, now=now).refused} == {
        "GPU node agent has not renewed its Lease": expired,
        "no GPU node agent has reported": ["n10"],
    }


@pytest.mark.parametrize("owner", ["Deployment", "Job", "CronJob", "PodTemplate"])
def test_a_workload_is_simulated_by_its_template(owner: str) -> None:
    template: Json = {"template": {"metadata": {"labels": {}}, "spec": HALF["spec"]}}
    of_owner = {"PodTemplate": template, "CronJob": {"spec": {"jobTemplate": {"spec": template}}}}
    made = of_owner.get(owner, {"spec": template})
    (asked,) = simulate.pods([{"kind": owner, "metadata": {"name": "web"}, **made}])
    account = simulated(asked)
    assert account.pod == "default/web" and account.placed


def test_lists_are_what_is_in_them() -> None:
    asked = pod(container("main"))
    listed, typed = {"kind": "List", "items": FLEET}, {"kind": "PodList", "items": [asked]}
    no_list, expected = {"kind": "AllowList"}, [*FLEET, kind("Pod", asked)]
    assert list(simulate.objects([listed, None, typed, no_list])) == [*expected, no_list]


@pytest.mark.parametrize(
    ("read", "raw", "text"),
    [
        (simulate.objects, {"a": 1}, "kind: must be"),
        (simulate.fleet, HALF, "must have a Node"),
        (simulate.pods, {"kind": "Service"}, "must have a Pod"),
        (simulate.pods, {"kind": "Job"}, "Job.template: must be"),
        (simulate.pods, {"kind": "CronJob", "spec": {"jobTemplate": 5}}, "CronJob.template: must"),
    ],
)
def test_unusable_objects_are_refused(
    read: Callable[[list[Json]], Any], raw: Json, text: str
) -> None:
    with pytest.raises(SimulationError, match=text):
        list(read([raw]))


def test_bytes_are_shown_in_the_largest_unit() -> None:
    sizes = {2**20 - 1: "1048575 B", 2**20: "1 MiB", 2**30 - 2**20: "1023 MiB", 2**30: "1 GiB"}
    assert {amount: simulate.size(amount) for amount in sizes} == sizes


def test_of_more_than_ten_nodes_the_others_are_counted() -> None:
    ten = ", ".join(f"n{number}" for number in range(10))
    for count, more in ((10, ""), (11, " and 1 more")):
        assert simulate.names_shown([f"n{n}" for n in range(count)][::-1]) == ten + more


# --- the command


Ask = Callable[..., commands.Done]


@pytest.fixture
def ask(tmp_path: Path) -> Ask:
    """A function that runs `simulate` with pods on stdin and a fleet in a file. written: the file's
    bytes instead of a fleet."""

    def run(
        *arguments: str,
        pods: Sequence[Json] = (HALF,),
        fleet: Sequence[Json] = FLEET,
        written: bytes = b"",
    ) -> commands.Done:
        (tmp_path / "fleet.yaml").write_bytes(written or yaml.safe_dump_all(fleet).encode())
        options = ("-f", "-", "--fleet", str(tmp_path / "fleet.yaml"), *arguments)
        return commands.run("simulate", *options, given=yaml.safe_dump_all(pods))

    return run


def test_the_table_names_node_gpu_and_share_and_the_reasons_against_others(ask: Ask) -> None:
    done = ask(pods=[asking(memory="12Gi", core=50)])
    assert done.exit_code == 0
    first, head, row, *others = done.stdout.splitlines()
    assert first == "default/pod-u-1: n1"
    assert head.split() == ["node", "score", "container", "gpu", "memory", "core"]
    node, _, *share = row.split()
    assert [node, *share] == ["n1", "main", "0", "GPU-a", "12", "GiB", "50", "%"]
    assert others == [
        "  2 nodes: every GPU is smaller than the requested memory: n2, n10",
        "  1 node: node has no GPU inventory (Device object): n3",
    ]


def test_json_is_for_programs(ask: Ask) -> None:
    first, second = json.loads(ask("--json", "--copies", "2").stdout)
    assert first["node"] == second["node"] == "n10"
    share = {"container": "main", "minor": 0, "uuid": "GPU-d", "memory_bytes": 4 << 30}
    assert first["candidates"][0]["containers"] == [{**share, "core_percent": 50}]
    for raw, shares_and_placed in ((asking(), (False, True)), (asking(gpu=150), (True, False))):
        (only,) = json.loads(ask("--json", pods=[raw]).stdout)
        assert (only["requests_share"], only["placed"]) == shares_and_placed


def test_where_no_node_fits_the_exit_status_is_1(ask: Ask) -> None:
    done = ask(pods=[asking(memory="100Gi")])
    assert done.exit_code == 1
    first, second, *_ = done.stdout.splitlines()
    assert first == "default/pod-u-1: no node has enough free GPU capacity"
    assert second.startswith("  3 nodes: every GPU is")
    done = ask(pods=[asking(gpu=150), asking()])
    assert done.exit_code == 1
    first, second, third = done.stdout.splitlines()
    assert first == "default/pod-u-1: refused, on every node"
    assert second.startswith("  container main: koordinator.sh/gpu: invalid value 150: must be")
    assert third == "default/pod-u-1: requests no share of a GPU; fits on any node"


def test_many_candidates_are_cut_and_counted_and_without_a_terminal_no_name_is(ask: Ask) -> None:
    uuid = "GPU-0b1c2d3e-4f50-6172-8394-a5b6c7d8e9f{:x}"
    fleet = [each for n in range(11) for each in a_node(f"{n:040}", gpu(uuid.format(n), 0))]
    done = ask(fleet=fleet)
    assert "and 1 more" in done.stdout
    assert "more" not in ask(fleet=fleet[2:]).stdout
    (row,) = [line for line in done.stdout.splitlines() if uuid.format(0) in line]
    assert row.split()[-2:] == ["50", "%"]


@pytest.mark.parametrize("written", [b"kind: \xff", b"a: [", b"a: 2026-99-99"])
def test_a_file_that_cannot_be_read_is_named(ask: Ask, tmp_path: Path, written: bytes) -> None:
    done = ask(written=written)
    assert done.exit_code == 2
    assert done.stderr.startswith(f"simulate: {tmp_path}/fleet.yaml: ")


def test_without_a_fleet_the_exit_status_is_2(ask: Ask) -> None:
    for done in (ask("--fleet", "/none"), commands.run("simulate", "-f", "-", given="kind: Pod")):
        assert (done.exit_code, done.stderr[:10]) == (2, "simulate: ")
    assert "required: -f/--file" in commands.run("simulate", "--from-cluster").stderr


def test_pods_of_other_dialects_are_placed_where_these_are_on(ask: Ask) -> None:
    raw = kind(
        "Pod", pod({"name": "main", "resources": {"limits": {"volcano.sh/gpu-memory": 128}}})
    )
    raw["spec"]["schedulerName"] = "volcano"
    done = ask("--dialects", ",".join(each.name for each in DIALECTS), pods=[raw])
    assert done.exit_code == 0, done.stdout
    off = ask(pods=[raw])
    assert off.exit_code == 1
    assert "set dialects.volcano.enabled to true" in off.stdout
