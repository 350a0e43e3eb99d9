"""`make demo-node`: one GPU, two pods of half a GPU each, on a real containerd.

The demo leads from the annotation to a refused allocation, and verifies each check as it prints it.
The exit status is 1 if a check fails.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, TextIO

from gpuslice.contract import names
from gpuslice.contract.overhead import CODE_BYTES
from lab.demo.report import Report, folded
from lab.demo.story import HOLD, OUT_OF_MEMORY, takes_all
from lab.node.catalogue import PYTHON_IMAGE
from lab.node.cri import CriError, Pod, Process
from lab.node.lab import BUILD, CLUSTER_FILES, FAILURES, Lab, LabError
from tools.programs import DEFAULT

GPU: Final = 40 << 30
HALF: Final = GPU // 2
PERCENT: Final = 50
_PROBE: Final = "/opt/lab/probe.py"
_MIB: Final = 1 << 20
_OOM: Final = "CUDA_ERROR_OUT_OF_MEMORY"


def gib(size: int) -> str:
    return f"{size / (1 << 30):.1f} GiB"


class Client:
    """A pod of the report, with its only container."""

    def __init__(self, name: str, pod: Pod) -> None:
        self.name = name
        self._container = pod.run("main", Process(PYTHON_IMAGE))

    def run(self, *command: str) -> str:
        done = self._container.exec(command)
        if done.code != 0:
            raise LabError(f"{self.name}: {' '.join(command)}: {done.out}{done.err}")
        return done.out

    def probe(self, script: str = "cuda-probe") -> dict[str, Any]:
        """Return what a program that starts now can allocate on the GPU."""
        found: dict[str, Any] = json.loads(self.run("sh", "-c", script))
        return found


@contextmanager
def started(report: Report) -> Iterator[Lab]:
    """Run a node with one GPU and the agent during the context."""
    files = {_PROBE: (Path(__file__).with_name("probe.py"), 0o755), **CLUSTER_FILES}
    with ExitStack() as stack:
        with report.doing(f"one GPU of {gib(GPU)}, containerd {DEFAULT.version}, the agent"):
            lab = stack.enter_context(Lab([GPU], files))
            lab.start_agent()
        yield lab


def run(report: Report) -> None:
    """Print the whole report. Raises LabError or CriError if it cannot continue."""
    report.title(
        "gpuslice: two pods, each limited to half of a GPU",
        "simulated: the GPU; real: containerd, runc, NRI, CRI, NVIDIA's Python packages",
    )
    report.chapter("1  A node")
    with started(report) as lab:
        logged = lab.agent_ready_line()
        registered = f"registered with containerd v{DEFAULT.version}" in logged
        report.check(f"the agent reports: {logged}", registered, logged)
        report.chapter("2  Two pods, each with the annotations that the scheduler writes")
        annotations = lab.share({"main": [(0, HALF, PERCENT)]})
        for name in (names.ANNOTATION_DEVICE_ALLOCATED, names.ANNOTATION_GRANTS):
            report.text(f"{name}:")
            report.text(f"  {folded(annotations[name])}", "dim")
        with lab.pod("pod-a", annotations) as first, lab.pod("pod-b", annotations) as second:
            with report.doing("RunPodSandbox, CreateContainer, StartContainer, for each"):
                pods = Client("pod-a", first), Client("pod-b", second)
            _queries(report, lab, pods)
            _filling(report, lab, pods)
            _killing(report, lab, pods[0])
        _invalid(report, lab)
    report.chapter("Limits of the method")
    report.text(
        f"The containers share the GPU's time too, {PERCENT} percent each: docs/compute.md. "
        "A library inside the process is no sandbox: docs/security.md."
    )


def _queries(report: Report, lab: Lab, pods: Sequence[Client]) -> None:
    report.chapter("3  What programs in the containers see")
    smi = ("nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits")
    shown = [int(pod.run(*smi)) * _MIB for pod in pods]
    seen = [json.loads(pod.run("python3", _PROBE)) for pod in pods]
    keys = {
        "nvidia-ml-py: nvmlDeviceGetMemoryInfo": "nvml_total",
        "cuda-bindings: cuDeviceTotalMem": "cuda_total",
        "cuda-bindings: cuMemGetInfo, free": "cuda_free",
    }
    rows = [(name, *(gib(each[key]) for each in seen)) for name, key in keys.items()]
    report.table(("", "pod-a", "pod-b"), [("nvidia-smi", *map(gib, shown)), *rows])
    sizes = {each[key] for each in seen for key in ("nvml_total", "cuda_total")}
    report.check("each query returns half of the GPU", sizes | set(shown) == {HALF}, seen)
    free = {each[key] for each in seen for key in ("nvml_free", "cuda_free")}
    context, code = lab.context_bytes // _MIB, CODE_BYTES // _MIB
    report.check(
        f"free is the limit less the context, {context} MiB, and {code} MiB reserved for code",
        free == {HALF - lab.floor_bytes},
        seen,
    )
    uuids = {each["uuid"] for each in seen}
    report.check("both have the same GPU", uuids == {lab.gpus[0].uuid}, seen)


def _filling(report: Report, lab: Lab, pods: Sequence[Client]) -> None:
    report.chapter("4  Each allocates all free memory, and then 512 bytes more")
    for number, pod in enumerate(pods, 1):
        held = pod.probe(HOLD)
        bars = [(each.name, HALF / GPU) for each in pods[:number]]
        report.gpu(bars, f"{gib(GPU - _free_outside(lab))} of {gib(GPU)}")
        report.check(
            f"{pod.name}: cuMemAlloc of {gib(held['free'])} succeeds, all that is free",
            takes_all(HALF, held) and held["free"] == HALF - lab.floor_bytes,
            held,
        )
        refused = held["more"] == OUT_OF_MEMORY
        report.check(f"{pod.name}: cuMemAlloc of 512 bytes more: {_OOM}", refused, held)
    free = _free_outside(lab)
    what = f"nvidia-smi on the node shows {gib(free)} free, reserved for code"
    report.check(what, free == 2 * CODE_BYTES, free)


def _free_outside(lab: Lab) -> int:
    query = ["--query-gpu=memory.free", "--format=csv,noheader,nounits"]
    done = lab.namespace.run([BUILD / "bin" / "nvidia-smi", *query], lab.driver_environment())
    return int(done.stdout) * _MIB


def _killing(report: Report, lab: Lab, pod: Client) -> None:
    report.chapter(f"5  kill -9 of {pod.name}'s program, which holds its whole limit")
    before = pod.probe()
    refused = before["context"] == OUT_OF_MEMORY
    report.check(f"before: a new program gets no context: {_OOM}", refused, before)
    pod.run("sh", "-c", "kill -9 $(busybox pidof cuda-probe)")
    after = pod.probe()
    expected = HALF - lab.floor_bytes
    report.check(f"after: {gib(after['free'])} are free again", after["free"] == expected, after)


def _invalid(report: Report, lab: Lab) -> None:
    report.chapter("6  An invalid annotation")
    annotation = names.ANNOTATION_DEVICE_ALLOCATED
    good = lab.allocated([(0, HALF, PERCENT)])[annotation]
    with lab.pod("pod-e", {annotation: good.replace('"20Gi"', '"half of it"')}) as pod:
        refused(report, pod, "the runtime refuses the container, with the reason", "half of it")


def refused(report: Report, pod: Pod, what: str, because: str) -> None:
    """Print containerd's refusal of a container. Check that the text contains `because`."""
    try:
        pod.create("main", Process(PYTHON_IMAGE))
        text = "the container was created"
    except CriError as refusal:
        text = str(refusal)
    start = max(text.find("gpuslice refuses"), 0)
    report.quote(text[start:].removeprefix("rpc error: code = Unknown desc = "))
    report.check(what, because in text, text)


def perform(out: TextIO, script: Callable[[Report], None] = run) -> int:
    """Print the report; return the exit status."""
    report = Report(out)
    try:
        script(report)
    except FAILURES as error:
        report.check("the demo completes", False, error)
    return report.end()


def main(script: Callable[[Report], None] = run) -> int:
    if os.geteuid() != 0:
        sys.stderr.write("demo: a private containerd needs root: sudo make demo-node\n")
        return 1
    try:
        return perform(sys.stdout, script)
    except KeyboardInterrupt:
        sys.stderr.write("\ndemo: interrupted; all that it started is removed\n")
        return 128 + signal.SIGINT


if __name__ == "__main__":
    sys.exit(main())
