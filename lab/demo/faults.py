"""`make demo-faults`: three faults, none of which lets a pod run without its limit.

The node agent is stopped, hangs, or gets a forged annotation. Each fault is caused on a real
containerd. Each check is printed with its result. The exit status is 1 if a check fails. `make
faults` covers every fault on every containerd.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Mapping
from typing import Final

from gpuslice.contract import names
from lab.demo.node import GPU, HALF, PERCENT, Client, gib, main, refused, started
from lab.demo.report import Report
from lab.node.catalogue import PYTHON_IMAGE
from lab.node.cri import Process
from lab.node.lab import Lab

_WITHOUT_AGENT: Final = f'required plugin "{names.PLUGIN_NAME}" not present'


def run(report: Report) -> None:
    """Print the whole report. Raises LabError or CriError if it cannot continue."""
    report.title(
        "gpuslice: three faults, and no pod without its limit",
        "simulated: the GPU; real: containerd, runc, NRI, CRI, NVIDIA's Python packages",
    )
    report.chapter("A node, and pod-a with half of its GPU")
    with started(report) as lab, lab.pod("pod-a", _half(lab)) as pod:
        pod_a = Client("pod-a", pod)
        _limited(report, pod_a, "pod-a sees")
        _stopped(report, lab, pod_a)
        _hung(report, lab, pod_a)
        _forged(report, lab, pod_a)


def _half(lab: Lab) -> Mapping[str, str]:
    """The scheduler's annotations for a pod that gets half of the GPU."""
    return lab.share({"main": [(0, HALF, PERCENT)]})


def _limited(report: Report, client: Client, what: str) -> None:
    total = client.probe()["total"]
    report.check(f"{what} {gib(total)}", total == HALF, total)


def _created(report: Report, lab: Lab, name: str) -> None:
    with lab.pod(name, _half(lab)) as pod:
        _limited(report, Client(name, pod), f"{name} is created, and sees")


def _stopped(report: Report, lab: Lab, pod_a: Client) -> None:
    report.chapter("1  The agent is stopped (SIGKILL)")
    lab.stop_agent(signal.SIGKILL)
    _limited(report, pod_a, "pod-a keeps running; a new program in it sees")
    with lab.pod("pod-b", _half(lab)) as pod:
        refused(report, pod, "containerd refuses pod-b, which has a grant", _WITHOUT_AGENT)
    report.text("pod-c has only an allocation of Koordinator, which requires no plugin:")
    with lab.pod("pod-c", lab.allocated([(0, HALF, PERCENT)])) as pod:
        answer = Client("pod-c", pod).run("sh", "-c", "ls /dev/simgpu; cuda-probe")
        *devices, seen = answer.splitlines()
        gpuless = not devices and not json.loads(seen)["driver"]
        report.check("pod-c's container runs, without a GPU", gpuless, answer)
    with report.doing("the agent is restarted"):
        lab.start_agent()
    _created(report, lab, "pod-b")


def _hung(report: Report, lab: Lab, pod_a: Client) -> None:
    report.chapter("2  The agent hangs (SIGSTOP)")
    ready = lab.times_ready()
    lab.signal_agent(signal.SIGSTOP)
    try:
        with lab.pod("pod-d", _half(lab)) as pod:
            report.text("containerd sends the request; its timeout is two seconds:")
            what = "containerd refuses pod-d, which has a grant"
            refused(report, pod, what, f"{names.PLUGIN_NAME} failed")
        with lab.pod("web") as pod:
            done = pod.run("main", Process(PYTHON_IMAGE)).exec(["true"])
            report.check("a pod that requests no GPU is created", done.code == 0, done)
        _limited(report, pod_a, "pod-a keeps running, and sees")
    finally:
        lab.signal_agent(signal.SIGCONT)
    with report.doing("the agent continues (SIGCONT), and registers again"):
        lab.wait_until(lambda: lab.times_ready() > ready, "the agent to register again")
    _created(report, lab, "pod-d")


def _forged(report: Report, lab: Lab, pod_a: Client) -> None:
    report.chapter("3  An annotation is forged")
    report.text("pod-e has an allocation of half of the GPU, and a forged grant of all of it:")
    annotations = dict(_half(lab))
    grants = json.loads(annotations[names.ANNOTATION_GRANTS])
    grants["containers"]["main"][0]["memory"] = GPU
    annotations[names.ANNOTATION_GRANTS] = json.dumps(grants)
    with lab.pod("pod-e", annotations) as pod:
        what = "the runtime refuses pod-e: the grant exceeds the allocation"
        refused(report, pod, what, "the pod's allocation of")
    report.text("pod-f has a forged allocation and grant of all of the GPU; half is pod-a's:")
    with lab.pod("pod-f", lab.share({"main": [(0, GPU, 100)]})) as pod:
        refused(report, pod, "the runtime refuses pod-f: insufficient free capacity", "pod-a")
    _limited(report, pod_a, "pod-a still sees")


if __name__ == "__main__":
    sys.exit(main(run))
