"""What `explain` says about each reason that a component has for refusing a pod or letting it wait.

The reasons are enumerated: a new one without an explanation fails a test here.
"""

from __future__ import annotations

from string import Formatter
from typing import Any

import pytest

from gpuslice.cli import remedies
from gpuslice.cli.cluster import Gpu, Slice
from gpuslice.cli.explanation import MAX_LINES, Facts, explain
from gpuslice.cli.queue_state import Held, Place
from gpuslice.cli.remedies import Do
from gpuslice.cli.use import SliceUse
from gpuslice.contract import names
from gpuslice.contract.dialects import DIALECTS
from gpuslice.contract.grant_file import Policy
from nri_plugin.policy import refusals
from nri_plugin.policy.refusals import Reason as Refused
from scheduler import events
from scheduler.core.reasons import Reason
from scheduler.decisions.simulate import Account, Nearest, Refusal
from tests.chart.rendering import keys, objects
from tests.scheduler.objects import Gi, container, pod

_ASKING = container("main", core=30, memory=4 * Gi)
_CONDITION = {"type": "PodScheduled", "message": "0/2 nodes are available: 1 Insufficient cpu."}


def _do(lines: Any) -> str:
    assert len(lines) <= MAX_LINES and lines[0].startswith("pod default/p: ")
    return str(lines[-1]).removeprefix("  do: ")


def _is(do: Do, text: str, node: str = "n1") -> bool:
    return text == do.format(pod="p", namespace="default", node=node)


def _waiting(message: str = "", **status: Any) -> dict[str, Any]:
    conditions = [{**_CONDITION, "message": message}] if message else []
    return {**pod(_ASKING), "status": {"phase": "Pending", "conditions": conditions, **status}}


def _running(**annotations: str) -> dict[str, Any]:
    return pod(_ASKING, node="n1", phase="Running", annotations=annotations)


def _gpus(*pods: str) -> list[Gpu]:
    """Return the node's GPUs: one that the pods share, and another pod's."""
    first, second = (Gpu(f"GPU-{at}", at, "", 80 * Gi, True) for at in range(2))
    first.slices = [Slice("default", name, "main", 4 * Gi, 30) for name in pods]
    second.slices = [Slice("default", "other", "main", 4 * Gi, 30)]
    return [first, second]


def _event(reason: str, text: str, **regarding: str) -> dict[str, Any]:
    return {"reason": reason, "note": text, "regarding": regarding}


# --- the scheduler


@pytest.mark.parametrize("reason", Reason)
def test_each_reason_of_the_scheduler_has_a_remedy(reason: Reason) -> None:
    near = Nearest("n1", reason, f"{reason.text} (more)")
    account = Account("default/p", True, False, refused=[Refusal(reason.text, ["n1", "n2"])])
    lines = explain(Facts("default", "p", _waiting("0/2 nodes"), account=account, nearest=near))
    assert f"  nearest node: n1: {reason.text} (more)" in lines
    assert f"  2 nodes: {reason.text}: n1, n2" in lines and "  kube-scheduler: 0/2 nodes" in lines
    assert _is(remedies.WAITING[reason], _do(lines))


def test_an_invalid_request_is_shown_with_its_field() -> None:
    error = "container main: invalid value 0: must be 1"
    account = Account("default/p", True, False, error=error)
    lines = explain(Facts("default", "p", _waiting("x"), account=account))
    assert lines[0].endswith("refused by the scheduler") and lines[1] == f"  {error}"
    assert _is(Do.POD, _do(lines))


@pytest.mark.parametrize(
    ("raw", "headline", "do"),
    [
        (_waiting(nominatedNodeName="n1"), "waits for evicted pods to end", Do.WAIT),
        (
            {**_waiting(), "spec": {"schedulingGates": [{"name": "quota"}]}},
            "waits for its scheduling gates",
            Do.GATES,
        ),
        (_waiting(), "waits for a node", Do.SCHEDULER),
        (_waiting("0/3 nodes"), "waits for a node", Do.CRITERIA),
        (pod(_ASKING, phase="Failed"), "has ended (Failed)", Do.ENDED),
        (_waiting("gpuslice has not read all pods"), "waits for a node", Do.SCHEDULER),
    ],
)
def test_a_pod_that_waits_for_others(raw: dict[str, Any], headline: str, do: Do) -> None:
    lines = explain(Facts("default", "p", raw))
    assert lines[0] == f"pod default/p: {headline}" and _is(do, _do(lines))


# --- queues


@pytest.mark.parametrize("held", Held)
def test_each_reason_of_a_queue_has_a_remedy(held: Held) -> None:
    """A pod at the gate, or one that Kueue admitted and no GPU has room for."""
    place, raw = Place(held, ["queue q: why"]), _waiting("0/2 nodes")
    raw["spec"] = {"schedulingGates": [{"name": "gate"}]} if place.is_gated else raw["spec"]
    near = Nearest("n1", Reason.MEMORY, Reason.MEMORY.text)
    account = Account("default/p", not place.is_gated, False)
    lines = explain(Facts("default", "p", raw, account=account, nearest=near, place=place))
    assert lines[0] == f"pod default/p: {held}" and "  queue q: why" in lines
    assert _is(remedies.HELD[held], _do(lines))
    assert ("  nearest node: n1: " + Reason.MEMORY.text in lines) is not place.is_gated


def test_an_admitted_pod_whose_node_has_another_problem() -> None:
    """Its quota is not what matters."""
    near = Nearest("n1", Reason.AGENT_MISSING, Reason.AGENT_MISSING.text)
    account, place = Account("default/p", True, False), Place(Held.ADMITTED, ["queue q: why"])
    raw = _waiting("0/2 nodes")
    lines = explain(Facts("default", "p", raw, account=account, nearest=near, place=place))
    assert lines[0] == "pod default/p: waits for a GPU" and "  queue q: why" in lines
    assert _is(remedies.WAITING[Reason.AGENT_MISSING], _do(lines))


def test_another_gate_than_kueues_comes_before_the_queue() -> None:
    raw, place = _waiting(), Place(Held.ADMITTED, ["queue q: why"])
    raw["spec"] = {"schedulingGates": [{"name": "mine"}]}
    lines = explain(Facts("default", "p", raw, place=place))
    assert lines[:2] == ["pod default/p: waits for its scheduling gates", "  mine"]
    event = _event(names.EVENT_QUEUE_WAITING, "the text")
    lines = explain(Facts("default", "p", raw, [event], missing=["list queues"]))
    assert "  Event GPUQueueWaiting: the text" in lines


def test_a_pod_with_a_node_shows_its_queue() -> None:
    place = Place(None, ["queue q: borrows"])
    assert "  queue q: borrows" in explain(Facts("default", "p", _running(), place=place))
    account = Account("default/p", False, True)
    lines = explain(Facts("default", "p", _running(), account=account, place=place))
    assert "  queue q: borrows" in lines and _is(Do.NOTHING, _do(lines))


# --- the agent


def _worded(template: str) -> str:
    """Return a text of the template, with a number in each field that has a format."""
    fields = [(name, spec) for _, name, spec, _ in Formatter().parse(template) if name]
    return template.format(**{name: 1.5 if spec else "<x>" for name, spec in fields})


def _by_the_agent(answer: str) -> dict[str, Any]:
    message = f"failed to create containerd container: rpc error: code = Unknown desc = 2: {answer}"
    waits = {"waiting": {"reason": "CreateContainerError", "message": message}}
    status = {"phase": "Pending", "containerStatuses": [{"name": "main", "state": waits}]}
    return {**pod(_ASKING, node="n1"), "status": status}


@pytest.mark.parametrize("reason", Refused)
def test_each_refusal_of_the_agent_has_a_remedy(reason: Refused) -> None:
    text = refusals.CONTAINER_REFUSED.format(
        container="main", pod="default/p", text=_worded(reason.value)
    )
    lines = explain(Facts("default", "p", _by_the_agent(text)))
    assert lines[0] == "pod default/p: refused by the agent of node n1"
    assert lines[1].strip()[:300] == text[:300]
    assert _is(remedies.REFUSED[reason], _do(lines))
    # An Event is enough, where the runtime has reported another error since.
    bound = pod(_ASKING, node="n1")
    event = _event("Failed", f"Error: failed: {text}")
    assert _is(remedies.REFUSED[reason], _do(explain(Facts("default", "p", bound, [event]))))


@pytest.mark.parametrize("template", remedies.ANSWERS)
def test_each_other_answer_of_the_agent_has_a_remedy(template: str) -> None:
    lines = explain(Facts("default", "p", _by_the_agent(_worded(template))))
    do = remedies.ANSWERS[template] or remedies.REFUSED[Refused.SELINUX]
    assert _is(do, _do(lines))


# --- admission


def test_each_policy_of_the_chart_has_a_remedy() -> None:
    switches = {each.switch for each in DIALECTS if each.switch} | {"queues.enabled"}
    chosen = *(f"--set={switch}=true" for switch in switches), "--set=frontEnd=claims"
    rendered = objects({}, *chosen, "--kube-version=v1.36.0")
    found = {name for kind, name in keys(rendered) if kind == "ValidatingAdmissionPolicy"}
    assert found == {*remedies.POLICIES}


@pytest.mark.parametrize("policy", remedies.POLICIES)
def test_a_pod_that_was_refused_at_its_creation(policy: str) -> None:
    denied = (
        f"Error creating: pods \"p-x\" is forbidden: ValidatingAdmissionPolicy '{policy}' with"
        f" binding '{policy}' denied request: container main: invalid value 0: must be 1"
    )
    other = _event("FailedCreate", denied.replace("value 0", "value 7"), name="other")
    event = _event("FailedCreate", denied, name="p")
    lines = explain(Facts("default", "p", None, [other, event]))
    assert lines[0] == "pod default/p: refused at its creation, of p"
    assert lines[1] == "  container main: invalid value 0: must be 1"
    assert _is(remedies.POLICIES[policy], _do(lines), node="NODE")


@pytest.mark.parametrize(
    ("owner", "is_the_pods"), [("p", True), ("p-6c9f", True), ("pq", False), ("q", False)]
)
def test_another_refusal_than_a_policys(owner: str, is_the_pods: bool) -> None:
    """Only the pod's own workload counts, and not one whose name begins alike."""
    lines = explain(Facts("default", "p", None, [_event("FailedCreate", "quota", name=owner)]))
    assert ("  quota" in lines) is is_the_pods
    assert _is(Do.NAMED if is_the_pods else Do.MANIFEST, _do(lines))


@pytest.mark.parametrize(
    ("owner", "observed", "is_refused"),
    [("p-2", "09", True), ("p-1", "11", True), ("p-1", "09", False)],
    ids=["a new replica set", "more of the old one", "solved since"],
)
def test_a_workload_whose_rollout_is_refused_beside_its_pods(
    owner: str, observed: str, is_refused: bool
) -> None:
    event = _event("FailedCreate", "quota", name=owner) | {"eventTime": f"{observed}:00"}
    lines = explain(Facts("default", "p", None, [event], created={"p-1-x": "10:00"}))
    assert ("  quota" in lines) is is_refused and "  pods of this name: p-1-x" in lines
    assert _is(Do.NAMED if is_refused else Do.EXPLAIN, _do(lines))


def test_the_name_of_a_workload_with_pods() -> None:
    lines = explain(Facts("default", "p", None, created={"p-1": "t", "p-2": "t"}))
    assert lines[1] == "  pods of this name: p-1, p-2" and _is(Do.EXPLAIN, _do(lines))


def test_a_pod_that_no_scheduler_serves() -> None:
    """The scheduler's Event is the answer, whatever the placement would be."""
    facts = Facts("default", "p", _waiting("0/1"), [_event(events.POD_PROBLEM, "set dialects")])
    lines = explain(facts)
    assert lines[0].endswith("waits, and cannot run as it is written")
    assert "  Event GPUShareUnclear: set dialects" in lines and _is(Do.POD, _do(lines))


# --- running pods


def test_each_event_has_a_remedy() -> None:
    ours = {text for name, text in vars(names).items() if name.startswith("EVENT_")}
    assert {*remedies.EVENTS} == ours | {*events.REASONS}


@pytest.mark.parametrize("reason", sorted({*remedies.EVENTS} - {events.POD_NOTICE}))
def test_an_event_about_a_running_pod(reason: str) -> None:
    lines = explain(Facts("default", "p", _running(), [_event(reason, "what happened")]))
    assert lines[0] == "pod default/p: runs on n1, with a problem"
    assert f"  Event {reason}: what happened" in lines
    assert _is(remedies.EVENTS[reason], _do(lines))


@pytest.mark.parametrize("policy", Policy)
def test_what_slows_a_pod(policy: Policy) -> None:
    mine = _running(**{names.ANNOTATION_COMPUTE: policy})
    gpus = _gpus("p", "pod-u-2")
    gpus[0].slices[0].use = SliceUse(share_ratio=0.3, throttled_ratio=0.4)
    lines = explain(Facts("default", "p", mine, gpus=gpus))
    assert lines[1].endswith(f"launches wait 40% of the time; compute policy {policy}")
    assert "  on the same GPU: default/pod-u-2" in lines
    assert _is(remedies.SLOW[policy], _do(lines))


def test_a_pod_without_measured_use() -> None:
    """Nothing is said about its speed."""
    lines = explain(Facts("default", "p", _running(), gpus=_gpus("p")))
    assert lines[1].endswith("4 GiB and 30 % of GPU 0 (GPU-0)")
    assert "  on the same GPU: no pod" in lines and _is(Do.AGENT, _do(lines))
    facts = Facts("default", "p", _running(), gpus=_gpus("p"), missing=["pods/portforward"])
    assert _is(Do.RIGHTS, _do(explain(facts)))


def test_a_pod_that_fills_the_gpu() -> None:
    """Its launches wait for its own work."""
    gpus = _gpus("p")
    gpus[0].slices[0].use = SliceUse(share_ratio=0.99, throttled_ratio=0.95)
    assert _is(Do.FULL, _do(explain(Facts("default", "p", _running(), gpus=gpus))))


def test_a_container_that_was_restarted() -> None:
    last = {"terminated": {"exitCode": 137}}
    status = {"name": "main", "restartCount": 12, "lastState": last, "state": {"running": {}}}
    raw = _running()
    raw["status"]["containerStatuses"] = [status]
    lines = explain(Facts("default", "p", raw))
    assert lines[0].endswith("runs on n1, and was restarted")
    assert lines[1] == "  container main: 12 restarts, last exit code 137"
    assert _is(Do.PREVIOUS, _do(lines))


def test_what_is_measured_decides_whether_gpuslice_slows_a_pod() -> None:
    mine = _running(**{names.ANNOTATION_COMPUTE: Policy.CAPPED})
    for ratio, do in ((0.4, Do.FAIR), (0.01, Do.PROFILE)):
        use = SliceUse(used_bytes=2 * Gi, share_ratio=0.3, throttled_ratio=ratio)
        gpus = _gpus("p")
        gpus[0].slices[0].use = use
        lines = explain(Facts("default", "p", mine, gpus=gpus))
        waits = f"2 GiB used, 30% of the GPU's time, launches wait {ratio:.0%} of the time"
        assert waits in lines[1] and _is(do, _do(lines))


def test_a_container_that_does_not_run_for_another_reason() -> None:
    waits = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
    raw = _running()
    raw["status"] = {"phase": "Pending", "containerStatuses": [{"name": "main", "state": waits}]}
    lines = explain(Facts("default", "p", raw))
    assert lines[1] == "  container main: ImagePullBackOff: no such image"
    assert _is(Do.DESCRIBE, _do(lines))


def test_a_pod_without_a_share_is_not_affected() -> None:
    facts = Facts("default", "p", pod(container("main")), account=Account("default/p", False, True))
    assert _is(Do.NOTHING, _do(explain(facts)), node="NODE")


# --- the form


def test_an_explanation_is_short_whatever_there_is_to_say() -> None:
    refused = [Refusal(str(number), [f"n{number}"]) for number in range(20)]
    facts = Facts(
        *("default", "p", _waiting("x" * 2000)),
        events=[_event(each, "y" * 2000) for each in remedies.EVENTS if each != events.POD_PROBLEM],
        account=Account("default/p", True, False, refused=refused),
        nearest=Nearest("n1", Reason.MEMORY, "z" * 2000),
        missing=["list nodes"] * 20,
    )
    lines = explain(facts)
    assert _is(Do.CAPACITY, _do(lines)) and max(map(len, lines)) < 450
