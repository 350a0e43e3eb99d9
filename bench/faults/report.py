"""Writes the fault matrix as a document, and decides whether the matrix holds.

There are two tables of faults: with NRI's default validator enabled, as recommended to operators,
and with it off, as by default. The date and the versions of kernel and runc are added.
"""

from __future__ import annotations

import datetime
import platform
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from bench.faults.limits import LIMITS
from bench.faults.outcome import Cell, Kind
from bench.faults.rig import INJECTIONS, SIZES, Injection
from lab.node.namespace import environment
from tools.programs import Release

_HEAD: Final = """\
# The fault matrix, {date}

A container is unprotected if a process in it could open the GPU with no limit in force.
Pods, runtimes and the agent are real, the GPU is simulated. {runc}, kernel {kernel}.
`{command}` made this table. Each cell has the number of containers that ran unprotected, and the
outcomes of those created during the fault, with one that ran before it. The number includes
containers created after the fault, until one had its limit again.
"""
_ON: Final = """
## With NRI's default validator on, where the runtime has one
"""
_OFF: Final = """
## With it off, the default

No component then enforces the required plugin. The protection is that only the agent injects the
GPU.
"""
_SIZES: Final = """
## Large messages

A GPU whose CDI spec has 1550 mounts, and a node with more pods than fit into one message.
"""
_LIMITS: Final = """
## The driver's memory limit, on a simulated driver 615

After each fault a program that contains the driver gets its grant and no more.
"""
_CONTROL: Final = """
## The control: our own measures switched off

The runtime injects the GPU by CDI, as for a device plugin; the pod requires no plugin; the agent
sends no failure policy, does not validate, and has no deadline of its own. The matrix can fail.
"""


@dataclass(frozen=True, slots=True)
class Column:
    """The cells of one runtime. validator: whether NRI's default validator is enabled."""

    release: Release
    validator: bool
    cells: Mapping[str, Cell]

    @property
    def holds(self) -> bool:
        """Whether no container is unprotected, and every cell recovers. With a validator, also no
        container with a grant may run without its GPU."""
        return all(
            not cell.unprotected
            and cell.recovers
            and not (self.validator and cell.kinds.get(Kind.NO_GPU))
            for cell in self.cells.values()
        )


def verdict(columns: Sequence[Column], *, control: bool) -> int:
    """Return the exit status. The control must have an unprotected container in each column."""
    if control:
        failing = (any(cell.unprotected for cell in c.cells.values()) for c in columns)
        return 0 if all(failing) else 1
    return 0 if all(column.holds for column in columns) else 1


def document(columns: Sequence[Column], *, control: bool) -> str:
    parts = [
        _HEAD.format(
            date=datetime.datetime.now(tz=datetime.UTC).date(),
            runc=_runc(),
            kernel=platform.release(),
            command="make faults" + (" ARGS=--control" if control else ""),
        )
    ]
    if control:
        parts += [_CONTROL, _table(INJECTIONS, columns)]
    else:
        # A runtime without a validator has the same result in both tables. Show it in the first.
        on = [c for c in columns if c.validator or not c.release.has_validator]
        off = [c for c in columns if not c.validator and c.release.has_validator]
        tables = (
            *((_ON, INJECTIONS, on), (_OFF, INJECTIONS, off), (_SIZES, SIZES, on)),
            (_LIMITS, LIMITS, on),
        )
        for head, rows, some in tables:
            if some and rows.keys() & some[0].cells.keys():
                parts += [head, _table(rows, some)]
    return "".join(parts)


def _runc() -> str:
    """Return a text like `runc version 1.1.5` for the runc on PATH, which containerd uses too."""
    path = environment()["PATH"]
    command = [shutil.which("runc", path=path) or "runc", "--version"]
    done = subprocess.run(command, text=True, capture_output=True)
    return done.stdout.partition("\n")[0]


def _table(injections: Mapping[str, Injection], columns: Sequence[Column]) -> str:
    rows = [
        [injection.title, *(_cell(column.cells[name]) for column in columns)]
        for name, injection in injections.items()
        if name in columns[0].cells
    ]
    return "\n" + table(["fault", *(column.release.title for column in columns)], rows)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _cell(cell: Cell) -> str:
    back = "" if cell.recovers else "; DOES NOT RECOVER"
    return f"**{cell.unprotected}**: {cell.summary}{back}"
