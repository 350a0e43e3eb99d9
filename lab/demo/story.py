"""The chapters of `make demo`: their actions, texts and checks.

It acts on the cluster only through `Live` (live.py), and prints through a Report, which counts the
checks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from gpuslice.contract import names
from lab.cluster.running import NODE
from lab.demo import seed
from lab.demo.live import Act, Live, StageError, kubectl, probed
from lab.demo.report import Bars, Report, folded
from simgpu import load_output
from tools import kubernetes
from tools.programs import DEFAULT

FIRST: Final = seed.NAME
SECOND: Final = "second"
THIRD: Final = "third"
TURNS: Final = {"thirty": 30, "seventy": 70}
"""Pods that share a GPU's time, and each pod's percentage of the time."""
LAST: Final = "seventy"
"""The pod that still runs at the end."""
_FULL: Final = "full"
_MALFORMED: Final = 150
_MIB: Final = 1 << 20
_GPU_MIB: Final = 23040
_SUCCESS, OUT_OF_MEMORY = 0, 2
_OOM: Final = "CUDA_ERROR_OUT_OF_MEMORY"
HOLD: Final = (
    "cuda-probe hold >/tmp/held 2>&1 & until [ -s /tmp/held ]; do sleep 0.1; done; cat /tmp/held"
)
"""Starts cuda-probe, which keeps its allocation, and prints the probe's line."""
_LOAD: Final = "cuda-load 8 10000 >/proc/1/fd/1 2>&1 &"
"""Starts 10 ms kernels for 8 seconds in the background. The output goes to the container's log."""
_LOGS: Final = ("logs", f"--selector={names.LABEL_ISOLATION_PROVIDER}", "--prefix", "--tail=-1")
_BOTH_S: Final = (3, 6)
"""The first and last second of the measurement, in which both pods' cuda-load runs."""
_WITHIN: Final = 5
_WORK_AT_LEAST: Final = 75
"""The least acceptable work in percent. An idle machine reaches about 99. On a busy machine the
programs wait for a processor, and meanwhile the simulated GPU is idle."""
_PROBE_AND_GPU: Final = "cuda-probe; nvidia-smi --query-gpu=uuid --format=csv,noheader"
_FILES: Final = ("volcano/gpu-pod1.yaml", "hami/gpu-pod.yaml")
_KAI: Final = "kai/gpu-memory.yaml"
_OTHER_SYSTEMS: Final = {
    "gpu-sharing": ("KAI", "gpu-memory: 2000", 2000),
    "gpu-pod1": ("Volcano", "volcano.sh/gpu-memory: 1024", 1024),
    "gpu-pod": ("HAMi", "nvidia.com/gpumem: 3000", 3000),
}
"""Other systems' pods: name, then system, request in the manifest, and limit in MiB."""
_TRIES: Final = 3
"""The attempts at the measurement. One fails if the machine stalls for seconds."""
_ALLOCATED: Final = names.ANNOTATION_DEVICE_ALLOCATED


def run(report: Report, stage: Live, where: Path) -> None:
    """Run all chapters but the removal. Raises StageError if the demo cannot continue."""
    report.title(
        "gpuslice: the pod of Koordinator's document, from kubectl to the limit",
        "simulated: the GPUs; real: "
        f"Kubernetes {kubernetes.VERSION}, containerd {DEFAULT.version}, runc, NRI",
    )
    scene = _Scene(report, stage)
    report.chapter(f"1  A cluster of one node, in {where}")
    with report.waiting("the cluster starts"):
        stage.up(report.text)
    gpu = scene.of("node", NODE, f".status.allocatable.{_escaped(names.RESOURCE_GPU)}")
    report.check(f"the node has two GPUs: {names.RESOURCE_GPU} is {gpu}", gpu == "200", gpu)
    scene.first()
    scene.inside()
    scene.second()
    scene.third()
    scene.turns()
    scene.four_dialects()
    scene.malformed()
    report.chapter("Limits of the method")
    report.text(
        "A library inside the process is no sandbox: docs/security.md. "
        "A launch can wait for its container's turn, up to 100 ms: docs/compute.md."
    )


def end(report: Report, stage: Live) -> None:
    report.chapter("Removal")
    with report.doing("the cluster stops"):
        left = stage.down()
    report.check(
        "no process, mount, cgroup, interface or file of the cluster is left", not left, left
    )


class _Scene:
    """The actions on the cluster, chapter by chapter."""

    def __init__(self, report: Report, stage: Live) -> None:
        self._report = report
        self._stage = stage
        self._gpu = ""

    def first(self) -> None:
        report = self._report
        report.chapter("2  The document's pod, unchanged; GPU 0 is allocated")
        self._run(_FULL, seed.of_a_whole_gpu(_FULL), f"{_FULL}, which requests a whole GPU")
        document = kubectl("apply", "-f", str(seed.PATH.relative_to(seed.ROOT)))
        self._show(document.shown, document, _running(FIRST))
        allocated = self._allocated(FIRST)
        report.text(f"{_ALLOCATED}:")
        report.text(f"  {folded(allocated)}", "dim")
        self._gpu = _entry(allocated)["id"]
        report.check(
            "the annotation is the document's, plus the GPU's id",
            allocated == seed.shown(self._gpu),
            allocated,
        )
        other = _entry(self._allocated(_FULL))
        report.check(
            f"it has GPU 1, because {_FULL} has all of GPU 0",
            (other["minor"], other["id"] != self._gpu) == (0, True),
            other,
        )

    def inside(self) -> None:
        report = self._report
        report.chapter(f"3  Inside {FIRST}")
        programs = kubectl("exec", FIRST, "--", "sh", "-c", "nvidia-smi; cuda-probe")
        shown = self._show(f"$ kubectl exec {FIRST} -- sh -c 'nvidia-smi; cuda-probe'", programs)
        used = re.search(r"(\d+)MiB / +(\d+)MiB", shown)
        found = used[0] if used else ""
        report.check(
            f"nvidia-smi shows half of a GPU of {_GPU_MIB}MiB: {found}",
            used is not None and int(used[2]) == _GPU_MIB // 2,
            shown,
        )
        taken = probed(shown)
        free = taken["free"] // _MIB
        report.check(
            f"cuMemAlloc of {free} MiB succeeds; the CUDA context and code have the rest",
            _takes_all_of(50, taken),
            taken,
        )
        report.check(f"cuMemAlloc of 512 bytes more: {_OOM}", _is_refused_more(taken), taken)

    def second(self) -> None:
        report = self._report
        report.chapter(f"4  A second pod on the same GPU, while {FIRST} holds its whole limit")
        self._run(SECOND, seed.like(SECOND, 25), f"{SECOND}: 25 instead of 50 percent")
        gpu = _entry(self._allocated(SECOND))["id"]
        report.check(f"{SECOND} has the same GPU", gpu == self._gpu, gpu)
        held = self._probe(FIRST, HOLD)
        report.check(f"{FIRST} holds {held['free'] // _MIB} MiB", held["filled"] == _SUCCESS, held)
        self._limited(SECOND, 25)

    def third(self) -> None:
        report = self._report
        report.chapter("5  A third pod, which does not fit")
        report.gpu([(FIRST, 0.5), (SECOND, 0.25)], "GPU 1")
        third = kubectl("apply", "-f", "-", given=seed.like(THIRD))
        self._show(f"$ kubectl apply -f -   # {THIRD}: 50 percent", third)
        events = kubectl(
            *("get", "events", f"--field-selector=involvedObject.name={THIRD}"),
            "-o=jsonpath={range .items[*]}{.reason}: {.message}{'\\n'}{end}",
        )
        why = self._output_with("FailedScheduling", events).splitlines()[0]
        report.text(why, "dim", 4)
        node = self.of("pod", THIRD, ".spec.nodeName")
        report.check(
            f"{THIRD} is pending, and its event has the reason",
            node == "" and "no GPU with enough free memory and core" in why,
            (node, why),
        )
        delete = kubectl("delete", "pod", SECOND, "--grace-period=1")
        self._show(delete.shown, delete, _running(THIRD))
        report.gpu([(FIRST, 0.5), (THIRD, 0.5)], "GPU 1")
        gpu = _entry(self._allocated(THIRD))["id"]
        report.check(f"{THIRD} runs, on the GPU that {SECOND} had", gpu == self._gpu, gpu)
        self._limited(THIRD, 50)

    def turns(self) -> None:
        report = self._report
        report.chapter("6  Two pods that share a GPU's time: 30 and 70 percent")
        delete = kubectl("delete", "pod", FIRST, THIRD, "--grace-period=1")
        self._show(delete.shown, delete)
        for pod, percent in TURNS.items():
            busy = seed.like(pod, percent).replace("cpu: 40m", "cpu: 400m")
            self._run(pod, busy, f"{pod}: {percent} percent")
        with report.watching(f"$ kubectl exec {' and '.join(TURNS)} -- cuda-load 8 10000") as show:
            for tries in range(1, _TRIES + 1):
                got = self._compete(show, tries)
                work = sum(got.values()) or 1.0
                shares = {pod: 100 * each / work for pod, each in got.items()}
                right = [abs(shares[pod] - TURNS[pod]) <= _WITHIN for pod in TURNS]
                if all(right) and work >= _WORK_AT_LEAST:
                    break
        report.bars([(pod, round(shares[pod], -1) / 100, f"{got[pod]:.1f} %") for pod in TURNS])
        for is_right, (pod, percent) in zip(right, TURNS.items(), strict=True):
            report.check(
                f"{pod} gets {percent} percent of the GPU's work, within {_WITHIN} points",
                is_right,
                got,
            )
        report.check(
            f"the GPU works at least {_WORK_AT_LEAST} percent of the time",
            work >= _WORK_AT_LEAST,
            got,
        )

    def _compete(self, show: Callable[[Bars], None], tries: int) -> dict[str, float]:
        """Run cuda-load in all pods for the `tries`th time. Return each pod's work in percent."""

        def ended(logs: str) -> bool:
            latest = {pod: (_seconds(logs, pod) or [(0.0, 0.0)])[-1][1] for pod in TURNS}
            show([(pod, got / 100, f"{got:.0f} %") for pod, got in latest.items()])
            return logs.count("] total ") == tries * len(TURNS)

        for pod in TURNS:
            self._output_of(kubectl("exec", pod, "--", "sh", "-c", _LOAD))
        logs = self._stage.do(kubectl(*_LOGS), ended, 0.5).text
        return {pod: _worked(logs, pod) for pod in TURNS}

    def four_dialects(self) -> None:
        """Run pods written for four systems on one GPU. Volcano's and HAMi's are files of
        docs/examples. KAI's file would list its GPU and end, so its command becomes a sleep.
        Koordinator's pod runs already."""
        report = self._report
        report.chapter("7  Pods of four systems on one GPU")
        leaving, staying = TURNS
        delete = kubectl("delete", "pod", leaving, "--grace-period=1")
        self._show(delete.shown, delete)
        texts = [(seed.EXAMPLES / name).read_text() for name in _FILES]
        texts.append((seed.EXAMPLES / _KAI).read_text().replace("nvidia-smi, -L", "sleep, 1d"))
        apply = kubectl("apply", "-f", "-", given="---\n".join(texts))
        pods = [f"pod/{name}" for name in _OTHER_SYSTEMS]
        ready = kubectl("wait", "--for=condition=Ready", *pods, "--timeout=100s")
        self._show("$ kubectl apply -f -   # pods of Volcano, HAMi and KAI", apply, ready)
        percent = TURNS[staying]
        limit_mib = _GPU_MIB * percent // 100
        ours = {staying: ("Koordinator", f"gpu-memory-ratio: {percent}", limit_mib)}
        rows, wrong, gpus = [], [], set()
        for name, (system, request, limit_mib) in {**ours, **_OTHER_SYSTEMS}.items():
            probe = kubectl("exec", name, "--", "sh", "-c", _PROBE_AND_GPU)
            seen = self._show(f"$ kubectl exec {name} -- cuda-probe", probe)
            found = probed(seen)
            if not (takes_all(limit_mib * _MIB, found) and _is_refused_more(found)):
                wrong.append((name, found))
            gpus.add(seen.splitlines()[-1])
            rows.append((name, system, request, f"{found['total'] // _MIB} MiB"))
        report.table(("pod", "system", "request", "memory inside"), rows)
        report.check(
            "each sees and allocates what it requests, and not 512 bytes more", not wrong, wrong
        )
        report.check("all have the same GPU", gpus == {self._gpu}, gpus)

    def malformed(self) -> None:
        report = self._report
        report.chapter("8  An invalid request")
        pod = seed.like("malformed", _MALFORMED)
        act = kubectl("apply", "-f", "-", given=pod)
        with report.doing(f"$ kubectl apply -f -   # {_MALFORMED} instead of 50 percent"):
            output = self._stage.do(act)
        report.text(output.text.strip(), "dim", 4)
        report.check(
            "the API server refuses it, and names the field and the allowed values",
            output.code != 0
            and f"{names.RESOURCE_CORE}: invalid value {_MALFORMED}" in output.text,
            output,
        )

    # --- queries of the stage -----------------------------------------------------------------

    def of(self, kind: str, name: str, path: str) -> str:
        """Return one field of an object."""
        return self._output_of(kubectl("get", kind, name, f"-o=jsonpath={{{path}}}"))

    def _show(self, shown: str, *acts: Act) -> str:
        """Run the acts and print `shown` with their duration. Return the last act's output."""
        with self._report.doing(shown):
            return [self._output_of(act) for act in acts][-1]

    def _run(self, pod: str, manifest: str, what: str) -> None:
        """Create the pod. Print the time until it is Ready."""
        apply = kubectl("apply", "-f", "-", given=manifest)
        self._show(f"$ kubectl apply -f -   # {what}", apply, _running(pod))

    def _output_of(self, act: Act) -> str:
        output = self._stage.do(act)
        if output.code != 0:
            raise StageError(f"{act.shown}: {output.text.strip()}")
        return output.text

    def _output_with(self, word: str, act: Act) -> str:
        output = self._stage.do(act, lambda text: word in text)
        if word not in output.text:
            raise StageError(f"{act.shown}: timeout waiting for {word}: {output.text}")
        return output.text

    def _allocated(self, pod: str) -> str:
        return self.of("pod", pod, f".metadata.annotations.{_escaped(_ALLOCATED)}")

    def _probe(self, pod: str, script: str = "cuda-probe") -> dict[str, Any]:
        return probed(self._output_of(kubectl("exec", pod, "--", "sh", "-c", script)))

    def _limited(self, pod: str, percent: int) -> None:
        """Check the limit that a program in the pod sees, can use, and cannot exceed."""
        taken = self._probe(pod)
        self._report.check(
            f"{pod} sees {taken['total'] // _MIB} MiB, allocates all, and not 512 bytes more",
            _takes_all_of(percent, taken) and _is_refused_more(taken),
            taken,
        )


def _seconds(logs: str, pod: str) -> Sequence[tuple[float, float]]:
    """Return the lines of the pod's last cuda-load: seconds since its start, and the GPU's work in
    the preceding second, in percent."""
    lines = [line for line in logs.splitlines() if line.startswith(f"[pod/{pod}/")]
    found = load_output.seconds("\n".join(line.partition("] ")[2] for line in lines))
    starts = [n for n in range(1, len(found)) if found[n][0] < found[n - 1][0]]
    return found[starts[-1] if starts else 0 :]


def _worked(logs: str, pod: str) -> float:
    """Return the GPU's work for the pod while both pods work, in percent of the time."""
    first, last = _BOTH_S
    kept = [got for at_s, got in _seconds(logs, pod) if first <= at_s <= last + 0.5]
    if not kept:
        raise StageError(f"no line of cuda-load in {pod}: {logs!r}")
    return sum(kept) / len(kept)


def _running(pod: str) -> Act:
    return kubectl("wait", "--for=condition=Ready", f"pod/{pod}", "--timeout=100s")


def _takes_all_of(percent: int, taken: dict[str, Any]) -> bool:
    return takes_all(_GPU_MIB * percent // 100 * _MIB, taken)


def takes_all(limit_bytes: int, taken: dict[str, Any]) -> bool:
    """Whether the probe sees that limit and could allocate all that the driver reports free."""
    return (taken["total"], taken["filled"]) == (limit_bytes, _SUCCESS)


def _is_refused_more(taken: dict[str, Any]) -> bool:
    return bool(taken["more"] == OUT_OF_MEMORY)


def _escaped(name: str) -> str:
    """Return the name escaped for a JSONPath."""
    return name.replace(".", "\\.")


def _entry(allocated: str) -> dict[str, Any]:
    """Return the entry of an allocation's only GPU."""
    try:
        entry: dict[str, Any] = json.loads(allocated)[names.DEVICE_TYPE_GPU][0]
    except (ValueError, LookupError) as error:
        raise StageError(f"no allocation of a GPU: {allocated!r}") from error
    return entry
