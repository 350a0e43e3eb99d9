"""`make demo-faults`: three faults, and that no pod runs without its limit because of one.

The node agent is stopped, hangs, or gets a forged annotation. Each fault is caused on a real
containerd, and each check is printed with its result; exit status 1 if one fails. `make
faults` covers every fault on every containerd.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from gpuslice.contract import names
from lab.demo.node import PROBE, Client, gib, refusal_of, shown, why_not
from lab.demo.report import Report
from lab.node.catalogue import PYTHON_IMAGE
from lab.node.cri import Process
from lab.node.lab import Lab
from tools.releases import DEFAULT

_GIB: Final = 1 << 30
_GPU: Final = 40 * _GIB
_HALF: Final = 20 * _GIB
_PERCENT: Final = 50


def run(report: Report) -> None:
    """The whole report. Raises LabError or CriError if it cannot continue."""
    report.title(
        "gpuslice: three faults, and no pod without its limit",
        "simulated: the GPU; real: containerd, runc, NRI, CRI, NVIDIA's Python packages",
    )
    report.chapter("A node, and pod-a with half of its GPU")
    with ExitStack() as stack:
        with report.doing(f"one GPU of {gib(_GPU)}, containerd {DEFAULT.version}, the agent"):
            probe = {PROBE: (Path(__file__).with_name("probe.py"), 0o755)}
            lab = stack.enter_context(Lab([_GPU], probe))
            lab.start_agent()
        pod_a = Client("pod-a", stack.enter_context(lab.pod("pod-a", _half(lab))))
        _limited(report, pod_a, "pod-a sees")
        _stopped(report, lab, pod_a)
        _hung(report, lab, pod_a)
        _forged(report, lab, pod_a)


def _half(lab: Lab) -> Mapping[str, str]:
    """The scheduler's annotations for a pod that gets half of the GPU."""
    return lab.share({"main": [(0, _HALF, _PERCENT)]})


def _limited(report: Report, client: Client, what: str) -> None:
    seen = client.query()
    report.check(f"{what} {gib(seen['cuda_total'])}", seen["cuda_total"] == _HALF, seen)


def _refused(report: Report, text: str, what: str, because: str) -> None:
    """Print the runtime's refusal of the pod; `because` must be in it."""
    start = text.find("gpuslice refuses")
    report.quote(text[max(start, 0) :].removeprefix("rpc error: code = Unknown desc = "))
    report.check(what, because in text, text)


def _no_gpu(report: Report, lab: Lab, name: str) -> None:
    """A pod that the runtime admits without the agent."""
    with lab.pod(name, lab.allocated([(0, _HALF, _PERCENT)])) as pod:
        container = pod.run("main", Process(PYTHON_IMAGE))
        device = container.exec(["ls", "/dev/simgpu"])
        answer = container.exec(["python3", PROBE, "report"])
        gpuless = device.code != 0 and "cuda_total" not in answer.out
        report.check(f"{name}'s container runs, without a GPU", gpuless, answer.out)


def _stopped(report: Report, lab: Lab, pod_a: Client) -> None:
    report.chapter("1  The agent is stopped (SIGKILL)")
    lab.stop_agent(signal.SIGKILL)
    _limited(report, pod_a, "pod-a keeps running; a new program in it sees")
    with lab.pod("pod-b", _half(lab)) as pod:
        because = f'required plugin "{names.PLUGIN_NAME}" not present'
        _refused(report, refusal_of(pod), "containerd refuses pod-b, which has a grant", because)
    report.text("pod-c has only an allocation of Koordinator, which requires no plugin:")
    _no_gpu(report, lab, "pod-c")
    with report.doing("the agent is restarted"):
        lab.start_agent()
    with lab.pod("pod-b", _half(lab)) as pod:
        _limited(report, Client("pod-b", pod), "pod-b is created, and sees")


def _hung(report: Report, lab: Lab, pod_a: Client) -> None:
    report.chapter("2  The agent hangs (SIGSTOP)")
    ready = lab.times_ready()
    lab.signal_agent(signal.SIGSTOP)
    try:
        with lab.pod("pod-d", _half(lab)) as pod:
            with report.doing("containerd sends the request; its timeout is two seconds"):
                text = refusal_of(pod)
            because = f"{names.PLUGIN_NAME} failed"
            _refused(report, text, "containerd refuses pod-d, which has a grant", because)
        with lab.pod("web") as pod:
            done = pod.run("main", Process(PYTHON_IMAGE)).exec(["true"])
            report.check("a pod that requests no GPU is created", done.code == 0, done)
        _limited(report, pod_a, "pod-a keeps running, and sees")
    finally:
        lab.signal_agent(signal.SIGCONT)
    with report.doing("the agent continues (SIGCONT), and registers again"):
        lab.wait_until(lambda: lab.times_ready() > ready, "the agent to register again")
    with lab.pod("pod-d", _half(lab)) as pod:
        _limited(report, Client("pod-d", pod), "pod-d is created, and sees")


def _forged(report: Report, lab: Lab, pod_a: Client) -> None:
    report.chapter("3  An annotation is forged")
    report.text("pod-e has an allocation of half of the GPU, and a forged grant of all of it:")
    annotations = dict(_half(lab))
    grants = json.loads(annotations[names.ANNOTATION_GRANTS])
    grants["containers"]["main"][0]["memory"] = _GPU
    annotations[names.ANNOTATION_GRANTS] = json.dumps(grants)
    with lab.pod("pod-e", annotations) as pod:
        because = "the pod's allocation of"
        _refused(
            report,
            refusal_of(pod),
            "the runtime refuses pod-e: the grant exceeds the allocation",
            because,
        )
    report.text("pod-f has a forged allocation and grant of all of the GPU; half is pod-a's:")
    with lab.pod("pod-f", lab.share({"main": [(0, _GPU, 100)]})) as pod:
        text = refusal_of(pod)
        _refused(report, text, "the runtime refuses pod-f: insufficient free capacity", "pod-a")
    _limited(report, pod_a, "pod-a still sees")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m lab.demo.faults", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--plain", action="store_true", help="no colours, 80 columns")
    chosen = parser.parse_args()
    if reason := why_not():
        sys.stderr.write(f"demo: {reason}\n")
        return 1
    return shown(chosen.plain, False, run)


if __name__ == "__main__":
    sys.exit(main())
