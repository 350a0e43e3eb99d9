"""The lab: a private containerd (node/) or Kubernetes (cluster/) with simulated GPUs, and the demo.

It does not use the machine's own container runtime or cluster. Its programs come from the project's
cache and run in separate namespaces and directories. The demo, tests and benchmarks use the lab.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Self


class Running(ABC):
    """A context manager that calls `start` on entry, and `stop` on exit or if `start` fails."""

    @abstractmethod
    def start(self) -> None: ...

    @abstractmethod
    def stop(self) -> None: ...

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def tail(log: Path) -> str:
    """Return the last 4,000 characters of the log."""
    return log.read_text(errors="replace")[-4000:]
