"""Presents the state as JSON for people, node by node."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from scheduler.core.reasons import Reason
from scheduler.decisions.state import State

Json = Mapping[str, Any]


def names_of(state: State, node: str | None = None) -> Sequence[str]:
    """Return the given name, or the names of all nodes for None."""
    fleet = state.fleet
    return [fleet.names[row] for row in fleet.all_rows().tolist()] if node is None else [node]


def nodes(state: State, names: Sequence[str]) -> Iterator[Json]:
    """Yield each known node with its GPUs and their holders."""
    fleet = state.fleet
    for name in names:
        row = fleet.row_of(name)
        if not row:
            continue
        holders: dict[str, list[Json]] = {}
        for holder in state.holders(name):
            share = {
                "pod": holder.pod_key,
                "uid": holder.uid,
                "memory_bytes": holder.amount.memory_bytes,
                "core_percent": holder.amount.core_percent,
                "assumed": holder.assumed,
            }
            holders.setdefault(holder.gpu, []).append(share)
        reason = Reason(int(fleet.blocked_by[row]))
        yield {
            "name": name,
            "reason": reason.name,
            "text": reason.text,
            "isolates": bool(fleet.isolates[row]),
            "gpus": [
                {
                    "uuid": gpu.uuid,
                    "minor": gpu.minor,
                    "usable": bool(fleet.usable[row, slot]),
                    "total_bytes": gpu.total_bytes,
                    "granted_bytes": int(fleet.used_bytes[row, slot]),
                    "reserved_bytes": int(fleet.reserved_bytes[row, slot]),
                    "free_bytes": int(fleet.free_bytes[row, slot]),
                    "granted_core_percent": int(fleet.used_core[row, slot]),
                    "reserved_core_percent": int(fleet.reserved_core[row, slot]),
                    "free_core_percent": int(fleet.free_core[row, slot]),
                    "shares_without_core": int(fleet.uncapped_shares[row, slot]),
                    "holders": holders.get(gpu.uuid, []),
                }
                for slot, gpu in enumerate(fleet.gpus[row])
            ],
        }


def problems(state: State) -> Sequence[Json]:
    """Return the problems that need a person's attention."""
    return [{"node": each.node, "pod": each.about, "text": each.text} for each in state.problems()]
