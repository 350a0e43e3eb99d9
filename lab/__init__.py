"""The lab: a private containerd (node/) or Kubernetes (cluster/) with simulated GPUs, and the demo.

It uses no container runtime or cluster of the machine. Its programs come from the project's cache
and run in their own namespaces and directories. The demo, tests and benchmarks use it.
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
