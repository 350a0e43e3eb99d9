"""`python -m bench.faults.bystanders`: what the agent's end does to containers without a share.

This is measured on every containerd. In each round, the agent ends or hangs, and then containers
without a share are created, one after the other. The agent is the real program, but it does not run
in a container. If it did, the runtime would first report that container's exit to plugins. One
situation simulates this. The exit status is 1 if more containers fail than NRI's version makes
unavoidable.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Final

from bench.faults.cases import Event, Strike
from bench.faults.report import table
from lab.node.catalogue import PYTHON_IMAGE
from lab.node.containerd_config import Options
from lab.node.cri import CriError, Process
from lab.node.lab import Lab
from tools import programs
from tools.programs import RELEASES, Release
from tools.progress import step

_PLAIN: Final = Process(PYTHON_IMAGE)
AFTER: Final = 3
"""The number of containers in a round. Only the first of them may fail."""
_SKIPS_CLOSED: Final = "2.4-nri"
"""NRI 0.12.5 skips a plugin whose connection is closed."""


@dataclass(slots=True)
class Harm:
    """What happened to the containers in one situation. texts: the runtime's errors."""

    created: int = 0
    failed: int = 0
    later: int = 0
    """The number of failed containers that were not the first of their round."""
    slowest_s: float = 0.0
    texts: set[str] = field(default_factory=set)

    @property
    def text(self) -> str:
        slow = f", up to {self.slowest_s:.1f} s" if self.slowest_s >= 1 else ""
        return f"{self.failed} of {self.created}{slow}"


class Beside:
    """Runs containers without a share on one containerd, whose agent ends in each round."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._fault = lab.directory / "fault"
        self._count = 0

    def round(self, end: Callable[[Beside], None], harm: Harm) -> None:
        self._fault.write_text("")
        self._lab.start_agent(program=("bench.faults.agent", self._fault))
        with ExitStack() as stack:
            self.pod = stack.enter_context(self._lab.pod("bystander"))
            self._made(Harm())
            end(self)
            for number in range(AFTER):
                failed = harm.failed
                self._made(harm)
                harm.later += (harm.failed - failed) * (number > 0)
            self._lab.stop_agent(signal.SIGKILL)

    def _made(self, harm: Harm) -> None:
        """Create, start and stop a container in the round's pod. Record it in `harm`."""
        began = time.monotonic()
        self._count += 1
        harm.created += 1
        try:
            self.pod.run(f"c{self._count}", _PLAIN).stop()
        except CriError as error:
            harm.failed += 1
            harm.texts.add(str(error))
        harm.slowest_s = max(harm.slowest_s, time.monotonic() - began)

    # --- how the agent ends -----------------------------------------------------------------

    def kill(self) -> None:
        self._lab.stop_agent(signal.SIGKILL)

    def terminate(self) -> None:
        self._lab.stop_agent(signal.SIGTERM)

    def kill_then_pod(self) -> None:
        """Kill the agent. The next container is the first of a new pod, as after a rollout."""
        self.kill()
        self.pod = self._lab.cri.run_pod("next")

    def kill_then_exit(self) -> None:
        """Kill the agent. Before the next container, another exits, as the agent's own would."""
        one = self.pod.run("agents-own", _PLAIN)
        self.kill()
        one.stop()

    def stop(self) -> None:
        self._lab.signal_agent(signal.SIGSTOP)

    def crash_at(self, event: Event) -> None:
        self._fault.write_text(f"{Strike.CRASH.value} {event.value}")


OWN_EXIT: Final = "killed, and its own container's exit is reported"
SITUATIONS: Final[Mapping[str, Callable[[Beside], None]]] = {
    "killed between requests": Beside.kill,
    "killed, and a new pod is next": Beside.kill_then_pod,
    OWN_EXIT: Beside.kill_then_exit,
    "ended by SIGTERM": Beside.terminate,
    "killed while it answers the creation": lambda beside: beside.crash_at(Event.CREATE),
    "killed while it answers the start": lambda beside: beside.crash_at(Event.START),
    "hangs": Beside.stop,
}
"""How the agent ends, by the title of the table's row."""


def failing(release: Release, title: str) -> int:
    """Return how many containers of a round fail, because NRI gets no answer from the agent."""
    if not release.has_validator or ", and " in title:
        return 0
    if title in ("killed between requests", "ended by SIGTERM"):
        return int(release.name != _SKIPS_CLOSED)
    if title == "killed while it answers the start":
        return int(release.name == _SKIPS_CLOSED)
    return 1


def measure(lab: Lab, rounds: int, titles: Sequence[str]) -> Mapping[str, Harm]:
    found = {}
    beside = Beside(lab)
    for title in titles:
        with step(f"{lab.release.title}: {title}") as shown:
            found[title] = harm = Harm()
            for _ in range(rounds):
                beside.round(SITUATIONS[title], harm)
            shown.result = harm.text
            shown.failed = harm.later > 0 or harm.failed > rounds * failing(lab.release, title)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.faults.bystanders", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="ends of the agent per cell")
    parser.add_argument("--runtime", action="append", choices=list(RELEASES), help="one column")
    chosen = parser.parse_args(arguments)
    columns: dict[str, Mapping[str, Harm]] = {}
    holds = True
    for name in chosen.runtime or RELEASES:
        release = RELEASES[name]
        programs.ensure(release=release)
        with Lab(release=release, options=Options(validator=True)) as lab:
            columns[release.title] = found = measure(lab, chosen.rounds, list(SITUATIONS))
        holds &= all(
            not harm.later and harm.failed <= chosen.rounds * failing(release, title)
            for title, harm in found.items()
        )
        for text in sorted({text for harm in found.values() for text in harm.texts}):
            sys.stdout.write(f"{release.title}: {text}\n")
    rows = [[title, *(each[title].text for each in columns.values())] for title in SITUATIONS]
    sys.stdout.write(table(["the agent", *columns], rows))
    return 0 if holds else 1


if __name__ == "__main__":
    if os.geteuid() != 0:
        sys.exit("bystanders: private containerds need root")
    sys.exit(main())
