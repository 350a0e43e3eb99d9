"""`make demo-node`: one GPU, two pods of half a GPU each, on a real containerd.

Runs one demo from the annotation to a refused allocation, and verifies each check as it prints
it; exit status 1 if one fails. `--plain --mask` prints what docs/demo.md shows.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, TextIO

from gpuslice.contract import names
from gpuslice.contract.overhead import CODE_BYTES
from lab.demo import sample
from lab.demo.report import Report, folded
from lab.node.catalogue import PYTHON_IMAGE
from lab.node.containerd import ContainerdError
from lab.node.cri import Container, CriError, Pod, Process
from lab.node.lab import BUILD, LIBRARY, Lab, LabError
from lab.node.namespace import NamespaceError
from tools.building import ProgramsError
from tools.releases import DEFAULT

ROOT: Final = Path(__file__).resolve().parents[2]
DOCUMENT: Final = ROOT / "docs" / "demo.md"

_GIB: Final = 1 << 30
_GPU: Final = 40 * _GIB
_HALF: Final = 20 * _GIB
_PERCENT: Final = 50
PROBE: Final = "/opt/lab/probe.py"
_OOM: Final = "CUDA_ERROR_OUT_OF_MEMORY"
_MIB: Final = 1 << 20


def gib(size: int) -> str:
    return f"{size / _GIB:.1f} GiB"


class Client:
    """A pod of the report, with the container in it."""

    def __init__(self, name: str, pod: Pod) -> None:
        self.name = name
        self.container: Container = pod.run("main", Process(PYTHON_IMAGE))

    def query(self) -> dict[str, Any]:
        """The GPU's figures as a program that starts now sees them."""
        return self._json(["python3", PROBE, "report"])

    def refusal(self) -> str:
        """Why a program that starts now gets no context; empty if it gets one."""
        answer = json.loads(self._run(["python3", PROBE, "report"]))
        return str(answer.get("error", ""))

    def serve(self) -> None:
        script = f"python3 {PROBE} serve >/tmp/serve.log 2>&1 & echo $! >/tmp/serve.pid"
        self._run(["sh", "-c", script])

    def ask(self, verb: str) -> dict[str, Any]:
        """Send a request to the serving program; return its answer."""
        return self._json(["python3", PROBE, "ask", verb])

    def kill(self) -> None:
        self._run(["sh", "-c", "kill -9 $(cat /tmp/serve.pid); rm /tmp/probe.sock"])

    def smi(self) -> int:
        """Bytes of memory that nvidia-smi shows."""
        query = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
        return int(self._run(query)) * _MIB

    def _json(self, command: Sequence[str]) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self._run(command))
        if "error" in answer:
            raise LabError(f"{self.name}: {' '.join(command)}: {answer['error']}")
        return answer

    def _run(self, command: Sequence[str]) -> str:
        done = self.container.exec(command)
        if done.code != 0:
            raise LabError(f"{self.name}: {' '.join(command)}: {done.out}{done.err}")
        return done.out


def run(report: Report) -> None:
    """The whole report. Raises LabError or CriError if it cannot continue."""
    report.title(
        "gpuslice: two pods, each limited to half of a GPU",
        "simulated: the GPU; real: containerd, runc, NRI, CRI, NVIDIA's Python packages",
    )
    probe = {PROBE: (Path(__file__).with_name("probe.py"), 0o755)}
    report.chapter("1  A node")
    with ExitStack() as stack:
        with report.doing(f"one GPU of {gib(_GPU)}, containerd {DEFAULT.version}, images"):
            lab = stack.enter_context(Lab([_GPU], probe))
        _node(report, lab)


def _node(report: Report, lab: Lab) -> None:
    with report.doing("node agent: python -m nri_plugin"):
        lab.start_agent()
    logged = lab.agent_ready_line()
    version = DEFAULT.version
    report.check(
        f"the agent reports: {logged}", f"registered with containerd v{version}" in logged, logged
    )

    report.chapter("2  Two pods, each with the annotations that the scheduler writes")
    annotations = lab.share({"main": [(0, _HALF, _PERCENT)]})
    for name in (names.ANNOTATION_DEVICE_ALLOCATED, names.ANNOTATION_GRANTS):
        report.text(f"{name}:")
        report.text(f"  {folded(annotations[name])}", "dim")
    with lab.pod("pod-a", annotations) as first, lab.pod("pod-b", annotations) as second:
        with report.doing(
            "RunPodSandbox, CreateContainer, StartContainer, for pod-a and for pod-b"
        ):
            pod_a, pod_b = Client("pod-a", first), Client("pod-b", second)
        _queries(report, lab, pod_a, pod_b)
        _filling(report, lab, pod_a, pod_b)
        _killing(report, lab, pod_a)
    _refusals(report, lab)

    report.chapter("Limits of the method")
    report.text(
        f"The containers share the GPU's time too, {_PERCENT} percent each: docs/compute.md. "
        "A library inside the process is no sandbox: docs/security.md."
    )


def _queries(report: Report, lab: Lab, pod_a: Client, pod_b: Client) -> None:
    report.chapter("3  What programs in the containers see")
    seen = [client.query() for client in (pod_a, pod_b)]
    shown = [client.smi() for client in (pod_a, pod_b)]
    rows = [
        ("nvidia-smi", *map(gib, shown)),
        *(
            (name, *(gib(one[key]) for one in seen))
            for name, key in (
                ("nvidia-ml-py: nvmlDeviceGetMemoryInfo", "nvml_total"),
                ("cuda-bindings: cuDeviceTotalMem", "cuda_total"),
                ("cuda-bindings: cuMemGetInfo, free", "cuda_free"),
            )
        ),
    ]
    report.table(("", pod_a.name, pod_b.name), rows)
    sizes = {key for one in seen for name, key in one.items() if name.endswith("total")}
    report.check("each query returns half of the GPU", sizes | set(shown) == {_HALF}, seen)
    free = {one[key] for one in seen for key in ("nvml_free", "cuda_free")}
    context, code = lab.context_bytes // _MIB, CODE_BYTES // _MIB
    report.check(
        f"free is the limit less the context, {context} MiB, and {code} MiB reserved for code",
        free == {_HALF - lab.floor_bytes},
        seen,
    )
    same = {one["uuid"] for one in seen} == {lab.gpus[0].uuid}
    report.check("both have the same GPU", same, seen)


def _filling(report: Report, lab: Lab, pod_a: Client, pod_b: Client) -> None:
    report.chapter("4  Each allocates all free memory, and then one byte more")
    for client in (pod_a, pod_b):
        client.serve()
        client.ask("free")  # one after the other
    taken: dict[str, int] = {}
    for client in (pod_a, pod_b):
        got = client.ask("fill")
        taken[client.name] = got["asked"]
        report.gpu(
            [(name, size / _GPU) for name, size in taken.items()],
            f"{gib(_GPU - _free_outside(lab))} of {gib(_GPU)}",
        )
        full = got["code"] == "CUDA_SUCCESS" and got["asked"] == _HALF - lab.floor_bytes
        report.check(
            f"{client.name}: cuMemAlloc of {gib(got['asked'])} succeeds, all that is free",
            full,
            got,
        )
        refused = got["one_more"] == _OOM
        report.check(f"{client.name}: cuMemAlloc of one byte more: {_OOM}", refused, got)
        if client is pod_a:
            done = pod_b.ask("work")
            report.check(
                "pod-b still works: it writes 64 MiB, and reads the same bytes", done["right"], done
            )
    free = _free_outside(lab)
    report.check(
        f"nvidia-smi on the node shows {gib(free)} free, reserved for code",
        free == 2 * CODE_BYTES,
        free,
    )


def _free_outside(lab: Lab) -> int:
    query = ["--query-gpu=memory.free", "--format=csv,noheader,nounits"]
    done = lab.namespace.run([BUILD / "bin" / "nvidia-smi", *query], lab.driver_environment())
    return int(done.stdout) * _MIB


def _killing(report: Report, lab: Lab, pod_a: Client) -> None:
    report.chapter("5  kill -9 of pod-a's program, which holds its whole limit")
    refusal = pod_a.refusal()
    report.check(
        f"before: a new program gets no context: {_OOM}",
        _OOM in refusal,
        refusal,
    )
    pod_a.kill()
    free = pod_a.query()["cuda_free"]
    report.check(f"after: {gib(free)} are free again", free == _HALF - lab.floor_bytes, free)


def _refusals(report: Report, lab: Lab) -> None:
    report.chapter("6  An invalid annotation")
    good = lab.allocated([(0, _HALF, _PERCENT)])[names.ANNOTATION_DEVICE_ALLOCATED]
    bad = good.replace('"20Gi"', '"half of it"')
    with lab.pod("pod-e", {names.ANNOTATION_DEVICE_ALLOCATED: bad}) as pod:
        text = refusal_of(pod)
    start = text.find("gpuslice refuses")
    if start >= 0:
        report.quote(text[start:])
    report.check(
        "the runtime refuses the container, with the reason",
        "half of it" in text and start >= 0,
        text,
    )

    lab.stop_agent()
    with lab.pod("pod-g", lab.share({"main": [(0, _HALF, _PERCENT)]})) as pod:
        text = refusal_of(pod)
    report.check(
        "without the agent, containerd refuses a pod that has a share",
        "required plugin" in text,
        text,
    )


def refusal_of(pod: Pod) -> str:
    """containerd's refusal of a container in `pod`; checks search it for the reason."""
    try:
        pod.create("main", Process(PYTHON_IMAGE))
    except CriError as refusal:
        return str(refusal)
    return "the container was created"


def why_not() -> str | None:
    if os.geteuid() != 0:
        return "a private containerd needs root: sudo make demo-node"
    missing = [str(path) for path in (LIBRARY, BUILD / "bin" / "nvidia-smi") if not path.exists()]
    return f"not built: {', '.join(missing)}; run make setup" if missing else None


_FATAL: Final = (
    LabError,
    CriError,
    ContainerdError,
    NamespaceError,
    ProgramsError,
)


def perform(out: TextIO, plain: bool, masked: bool, script: Callable[[Report], None] = run) -> int:
    report = Report(out, plain, masked)
    try:
        script(report)
    except _FATAL as error:
        report.check("the demo completes", False, error)
    return report.end()


def documented(text: str) -> str:
    """The document's text with the current output. Raises RuntimeError if a check fails."""
    out = io.StringIO()
    if perform(out, plain=True, masked=True) != 0:
        raise RuntimeError(out.getvalue())
    return sample.placed(text, "demo-node", "make demo-node", sample.plain(out.getvalue()))


def shown(plain: bool, masked: bool, script: Callable[[Report], None]) -> int:
    """Run the report on this terminal; return the exit status."""
    try:
        return perform(sys.stdout, plain, masked, script)
    except KeyboardInterrupt:
        sys.stderr.write("\ndemo: interrupted; all that it started is removed\n")
        return 128 + signal.SIGINT


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m lab.demo.node", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--plain", action="store_true", help="no colours, 80 columns")
    parser.add_argument("--mask", action="store_true", help="hide what varies from run to run")
    parser.add_argument(
        "--write", action="store_true", help="put the output into docs/demo.md, its times masked"
    )
    chosen = parser.parse_args()
    if reason := why_not():
        sys.stderr.write(f"demo: {reason}\n")
        return 1
    if chosen.write:
        DOCUMENT.write_text(documented(DOCUMENT.read_text()))
        return 0
    return shown(chosen.plain, chosen.mask, run)


if __name__ == "__main__":
    sys.exit(main())
