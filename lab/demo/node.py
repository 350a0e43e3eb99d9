"""`make demo-node`: one GPU, two pods of half a GPU each, on a real containerd.

Runs one story from the annotation to a refused allocation, and checks each claim as it is printed;
exit status 1 if one does not hold. `--plain --mask` prints what docs/demo.md shows.
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

from contract import names
from contract.overhead import CODE_BYTES
from lab.demo import sample
from lab.demo.claims import Story, folded
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


class Actor:
    """A pod of the story, with the container in it."""

    def __init__(self, name: str, pod: Pod) -> None:
        self.name = name
        self.container: Container = pod.run("main", Process(PYTHON_IMAGE))

    def report(self) -> dict[str, Any]:
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


def tell(story: Story) -> None:
    """The whole story. Raises LabError or CriError if it cannot continue."""
    story.title(
        "gpuslice: half a GPU is half a GPU",
        "simulated: the GPU; real: containerd, runc, NRI, CRI, NVIDIA's Python packages",
    )
    probe = {PROBE: (Path(__file__).with_name("probe.py"), 0o755)}
    story.chapter("1  A node")
    with ExitStack() as stack:
        with story.doing(f"one GPU of {gib(_GPU)}, containerd {DEFAULT.version}, images"):
            lab = stack.enter_context(Lab([_GPU], probe))
        _node(story, lab)


def _node(story: Story, lab: Lab) -> None:
    with story.doing("node agent: python -m nri_plugin"):
        lab.start_agent()
    said = lab.agent_said()
    version = DEFAULT.version
    story.claim(f"the agent says: {said}", f"registered with containerd v{version}" in said, said)

    story.chapter("2  Two pods, each with the annotations that the scheduler writes")
    annotations = lab.share({"main": [(0, _HALF, _PERCENT)]})
    for name in (names.ANNOTATION_DEVICE_ALLOCATED, names.ANNOTATION_GRANTS):
        story.say(f"{name}:")
        story.say(f"  {folded(annotations[name])}", "dim")
    with lab.pod("ada", annotations) as first, lab.pod("bob", annotations) as second:
        with story.doing("RunPodSandbox, CreateContainer, StartContainer, for ada and for bob"):
            ada, bob = Actor("ada", first), Actor("bob", second)
        _reports(story, lab, ada, bob)
        _filling(story, lab, ada, bob)
        _killing(story, lab, ada)
    _refusals(story, lab)

    story.chapter("Not enforced yet")
    story.say(
        f"gpu-core ({_PERCENT} % of the GPU's time) is carried to the container, but not kept. "
        "A library inside the process is no sandbox: docs/security.md."
    )


def _reports(story: Story, lab: Lab, ada: Actor, bob: Actor) -> None:
    story.chapter("3  What programs inside are told")
    told = [actor.report() for actor in (ada, bob)]
    shown = [actor.smi() for actor in (ada, bob)]
    rows = [
        ("nvidia-smi", *map(gib, shown)),
        *(
            (name, *(gib(one[key]) for one in told))
            for name, key in (
                ("nvidia-ml-py: nvmlDeviceGetMemoryInfo", "nvml_total"),
                ("cuda-bindings: cuDeviceTotalMem", "cuda_total"),
                ("cuda-bindings: cuMemGetInfo, free", "cuda_free"),
            )
        ),
    ]
    story.table(("", ada.name, bob.name), rows)
    sizes = {key for one in told for name, key in one.items() if name.endswith("total")}
    story.claim("each sees half of the GPU, with every query", sizes | set(shown) == {_HALF}, told)
    free = {one[key] for one in told for key in ("nvml_free", "cuda_free")}
    context, code = lab.context_bytes // _MIB, CODE_BYTES // _MIB
    story.claim(
        f"free is what the program's context leaves, {context} MiB, and {code} MiB kept for code",
        free == {_HALF - lab.floor_bytes},
        told,
    )
    same = {one["uuid"] for one in told} == {lab.gpus[0].uuid}
    story.claim("and both have the same GPU", same, told)


def _filling(story: Story, lab: Lab, ada: Actor, bob: Actor) -> None:
    story.chapter("4  Each takes all that it is told is free, and then one byte more")
    for actor in (ada, bob):
        actor.serve()
        actor.ask("free")  # one after the other
    taken: dict[str, int] = {}
    for actor in (ada, bob):
        got = actor.ask("fill")
        taken[actor.name] = got["asked"]
        story.gpu(
            [(name, size / _GPU) for name, size in taken.items()],
            f"{gib(_GPU - _free_outside(lab))} of {gib(_GPU)}",
        )
        full = got["code"] == "CUDA_SUCCESS" and got["asked"] == _HALF - lab.floor_bytes
        story.claim(
            f"{actor.name}: cuMemAlloc of {gib(got['asked'])} succeeds, all that is free",
            full,
            got,
        )
        refused = got["one_more"] == _OOM
        story.claim(f"{actor.name}: cuMemAlloc of one byte more: {_OOM}", refused, got)
        if actor is ada:
            done = bob.ask("work")
            story.claim("bob goes on: writes 64 MiB, reads them back unharmed", done["right"], done)
    free = _free_outside(lab)
    story.claim(
        f"seen from outside, by nvidia-smi on the node, {gib(free)} are free, kept for code",
        free == 2 * CODE_BYTES,
        free,
    )


def _free_outside(lab: Lab) -> int:
    query = ["--query-gpu=memory.free", "--format=csv,noheader,nounits"]
    done = lab.namespace.run([BUILD / "bin" / "nvidia-smi", *query], lab.driver_environment())
    return int(done.stdout) * _MIB


def _killing(story: Story, lab: Lab, ada: Actor) -> None:
    story.chapter("5  kill -9 of ada's program, with all its memory taken")
    refusal = ada.refusal()
    story.claim(
        f"before: a second program in ada gets no context: {_OOM}", _OOM in refusal, refusal
    )
    ada.kill()
    free = ada.report()["cuda_free"]
    story.claim(f"after: it finds {gib(free)} free again", free == _HALF - lab.floor_bytes, free)


def _refusals(story: Story, lab: Lab) -> None:
    story.chapter("6  An annotation that cannot be kept")
    good = lab.allocated([(0, _HALF, _PERCENT)])[names.ANNOTATION_DEVICE_ALLOCATED]
    bad = good.replace('"20Gi"', '"half of it"')
    with lab.pod("eve", {names.ANNOTATION_DEVICE_ALLOCATED: bad}) as pod:
        text = refusal_of(pod)
    start = text.find("gpuslice refuses")
    if start >= 0:
        story.quote(text[start:])
    story.claim("the container is refused, and told why", "half of it" in text and start >= 0, text)

    lab.stop_agent()
    with lab.pod("zoe", lab.share({"main": [(0, _HALF, _PERCENT)]})) as pod:
        text = refusal_of(pod)
    story.claim(
        "without the agent, containerd refuses a pod that has a share",
        "required plugin" in text,
        text,
    )


def refusal_of(pod: Pod) -> str:
    """containerd's refusal of a container in `pod`; claims search it for the reason."""
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


_CANNOT_GO_ON: Final = (
    LabError,
    CriError,
    ContainerdError,
    NamespaceError,
    ProgramsError,
)


def perform(out: TextIO, plain: bool, masked: bool, teller: Callable[[Story], None] = tell) -> int:
    story = Story(out, plain, masked)
    try:
        teller(story)
    except _CANNOT_GO_ON as error:
        story.claim("the demo runs to its end", False, error)
    return story.end()


def documented(text: str) -> str:
    """The document's text with the current output. Raises RuntimeError if a claim fails."""
    out = io.StringIO()
    if perform(out, plain=True, masked=True) != 0:
        raise RuntimeError(out.getvalue())
    return sample.placed(text, "demo-node", "make demo-node", sample.plain(out.getvalue()))


def shown(plain: bool, masked: bool, teller: Callable[[Story], None]) -> int:
    """Run the story on this terminal; return the exit status."""
    try:
        return perform(sys.stdout, plain, masked, teller)
    except KeyboardInterrupt:
        sys.stderr.write("\ndemo: interrupted; nothing of it is left\n")
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
    return shown(chosen.plain, chosen.mask, tell)


if __name__ == "__main__":
    sys.exit(main())
