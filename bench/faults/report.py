"""The matrix as a document: a table of counts, how each cell came out, and whether it holds.

Pure but for the date and the machine's kernel. Two tables: with NRI's default validator as the
operator should turn it on, and as it comes.
"""

from __future__ import annotations

import datetime
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from bench.faults import outcome
from bench.faults.cases import FAULTS
from bench.faults.outcome import Cell
from simgpu.lab.releases import Release

_HEAD: Final = """\
# The fault matrix, {date}

Containers that ran unprotected: in which a process could open the card with no limit in force.
Pods, runtimes and the agent are real, the card is simulated; kernel {kernel}. `{command}` made it.
"""
_ON: Final = """
## With NRI's default validator on, where the runtime has one
"""
_OFF: Final = """
## With it off, as it comes

Nothing then heeds that a pod requires the agent. What is left is that only the agent brings the
card.
"""
_CONTROL: Final = """
## The control: our own measures switched off

The runtime injects the card by CDI, as for a device plugin; the pod requires no plugin; the agent
sends no failure policy, does not validate, and has no deadline of its own. The matrix can fail.
"""
_SAID: Final = """
## What refused, in all of them together

"""


@dataclass(frozen=True, slots=True)
class Column:
    """One runtime; `validator`: whether NRI's own is on."""

    release: Release
    validator: bool
    cells: Mapping[str, Cell]

    @property
    def holds(self) -> bool:
        return all(not cell.unprotected and cell.recovers for cell in self.cells.values())


def verdict(columns: Sequence[Column], *, control: bool) -> int:
    """The exit status. The control holds where each of its columns fails somewhere."""
    if control:
        failing = (any(cell.unprotected for cell in c.cells.values()) for c in columns)
        return 0 if all(failing) else 1
    return 0 if all(column.holds for column in columns) else 1


def document(columns: Sequence[Column], *, control: bool) -> str:
    command = "make faults" + (" ARGS=--control" if control else "")
    today = datetime.datetime.now(tz=datetime.UTC).date()
    parts = [_HEAD.format(date=today, kernel=platform.release(), command=command)]
    if control:
        parts += [_CONTROL, _table(columns)]
    else:
        # Where there is no validator, there is one table's worth of behaviour, shown in the first.
        on = [c for c in columns if c.validator or not c.release.has_validator]
        off = [c for c in columns if not c.validator and c.release.has_validator]
        for head, some in ((_ON, on), (_OFF, off)):
            if some:
                parts += [head, _table(some)]
    said = outcome.whys(cell for column in columns for cell in column.cells.values())
    if said:
        parts += [_SAID, *(f"- {why}: {count}\n" for why, count in said.items())]
    return "".join(parts)


def _table(columns: Sequence[Column]) -> str:
    head = ["fault", *(column.release.title for column in columns)]
    rows = [
        [fault.title, *(_cell(column.cells[name]) for column in columns)]
        for name, fault in FAULTS.items()
        if name in columns[0].cells
    ]
    lines = [head, ["---"] * len(head), *rows]
    return "\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _cell(cell: Cell) -> str:
    kinds = ", ".join(f"{count} {kind.value}" for kind, count in cell.kinds.items())
    back = "" if cell.recovers else "; DOES NOT RECOVER"
    return f"**{cell.unprotected}** ({kinds}{back})"
