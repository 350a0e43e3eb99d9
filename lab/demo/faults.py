"""`make demo-faults`: three faults, and that no pod runs without its limit because of one.

The node agent is stopped, hangs, or gets a forged annotation. Each fault is caused on a real
containerd, and each claim is checked as it is printed; exit status 1 if one does not hold. `make
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

from contract import names
from lab.demo.claims import Story
from lab.demo.node import PROBE, Actor, gib, refusal_of, shown, why_not
from lab.node.catalogue import PYTHON_IMAGE
from lab.node.cri import Process
from lab.node.lab import Lab
from tools.releases import DEFAULT

_GIB: Final = 1 << 30
_GPU: Final = 40 * _GIB
_HALF: Final = 20 * _GIB
_PERCENT: Final = 50


def tell(story: Story) -> None:
    """The whole story. Raises LabError or CriError if it cannot continue."""
    story.title(
        "gpuslice: three faults, and no pod without its limit",
        "simulated: the GPU; real: containerd, runc, NRI, CRI, NVIDIA's Python packages",
    )
    story.chapter("A node, and ada on half of its GPU")
    with ExitStack() as stack:
        with story.doing(f"one GPU of {gib(_GPU)}, containerd {DEFAULT.version}, the agent"):
            probe = {PROBE: (Path(__file__).with_name("probe.py"), 0o755)}
            lab = stack.enter_context(Lab([_GPU], probe))
            lab.start_agent()
        ada = Actor("ada", stack.enter_context(lab.pod("ada", _half(lab))))
        _limited(story, ada, "ada sees")
        _stopped(story, lab, ada)
        _hung(story, lab, ada)
        _forged(story, lab, ada)


def _half(lab: Lab) -> Mapping[str, str]:
    """The scheduler's annotations for a pod that gets half of the GPU."""
    return lab.share({"main": [(0, _HALF, _PERCENT)]})


def _limited(story: Story, actor: Actor, claim: str) -> None:
    told = actor.report()
    story.claim(f"{claim} {gib(told['cuda_total'])}", told["cuda_total"] == _HALF, told)


def _refused(story: Story, text: str, claim: str, because: str) -> None:
    """Print the runtime's refusal of the pod; `because` must be in it."""
    start = text.find("gpuslice refuses")
    story.quote(text[max(start, 0) :].removeprefix("rpc error: code = Unknown desc = "))
    story.claim(claim, because in text, text)


def _no_gpu(story: Story, lab: Lab, name: str) -> None:
    """A pod that the runtime admits without asking the agent."""
    with lab.pod(name, lab.allocated([(0, _HALF, _PERCENT)])) as pod:
        container = pod.run("main", Process(PYTHON_IMAGE))
        device = container.exec(["ls", "/dev/simgpu"])
        answer = container.exec(["python3", PROBE, "report"])
        gpuless = device.code != 0 and "cuda_total" not in answer.out
        story.claim(f"{name}'s container runs, and has no GPU at all", gpuless, answer.out)


def _stopped(story: Story, lab: Lab, ada: Actor) -> None:
    story.chapter("1  The agent is stopped (SIGKILL)")
    lab.stop_agent(signal.SIGKILL)
    _limited(story, ada, "ada runs on; a program that starts now sees")
    with lab.pod("bob", _half(lab)) as pod:
        because = f'required plugin "{names.PLUGIN_NAME}" not present'
        _refused(story, refusal_of(pod), "bob, with a grant, is refused by containerd", because)
    story.say("carl has an allocation of Koordinator's alone, which requires no plugin:")
    _no_gpu(story, lab, "carl")
    with story.doing("the agent is started again"):
        lab.start_agent()
    with lab.pod("bob", _half(lab)) as pod:
        _limited(story, Actor("bob", pod), "bob is made now, and sees")


def _hung(story: Story, lab: Lab, ada: Actor) -> None:
    story.chapter("2  The agent hangs (SIGSTOP)")
    ready = lab.times_ready()
    lab.signal_agent(signal.SIGSTOP)
    try:
        with lab.pod("dora", _half(lab)) as pod:
            with story.doing("containerd asks, and waits for its two seconds"):
                text = refusal_of(pod)
            because = f"{names.PLUGIN_NAME} failed"
            _refused(story, text, "dora, with a grant, is refused by containerd", because)
        with lab.pod("web") as pod:
            done = pod.run("main", Process(PYTHON_IMAGE)).exec(["true"])
            story.claim("a pod that wants no GPU is made as always", done.code == 0, done)
        _limited(story, ada, "ada runs on, and sees")
    finally:
        lab.signal_agent(signal.SIGCONT)
    with story.doing("the agent goes on, and registers anew"):
        lab.wait_until(lambda: lab.times_ready() > ready, "the agent to register again")
    with lab.pod("dora", _half(lab)) as pod:
        _limited(story, Actor("dora", pod), "dora is made now, and sees")


def _forged(story: Story, lab: Lab, ada: Actor) -> None:
    story.chapter("3  An annotation is forged")
    story.say("eve was allocated half of the GPU, and grants herself all of it:")
    annotations = dict(_half(lab))
    grants = json.loads(annotations[names.ANNOTATION_GRANTS])
    grants["containers"]["main"][0]["memory"] = _GPU
    annotations[names.ANNOTATION_GRANTS] = json.dumps(grants)
    with lab.pod("eve", annotations) as pod:
        because = "the pod's allocation of"
        _refused(story, refusal_of(pod), "eve is refused: it does not add up", because)
    story.say("fay forges the allocation, too; it adds up, but half of the GPU is ada's:")
    with lab.pod("fay", lab.share({"main": [(0, _GPU, 100)]})) as pod:
        text = refusal_of(pod)
        _refused(story, text, "fay is refused: the GPU has not as much left", "ada")
    _limited(story, ada, "ada has kept her")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m lab.demo.faults", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--plain", action="store_true", help="no colours, 80 columns")
    chosen = parser.parse_args()
    if reason := why_not():
        sys.stderr.write(f"demo: {reason}\n")
        return 1
    return shown(chosen.plain, False, tell)


if __name__ == "__main__":
    sys.exit(main())
