"""Cards as those tell of them who were granted a share: all that is left to know of a card that
nobody can ask any more, once no Device object lists it either.

Pure. Its UUID and minor are those of the grant. Its memory is told as what is granted of it: the
card had that much at least, and the node's totals need no more, since a total beyond what is
granted would be room on a card that is not there. Where it is on its board nobody knows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from contract import allocation, names
from nri_plugin.ledger import Hold
from nri_plugin.model import Card


def cards(
    holds: Iterable[Hold], allocated: Mapping[str, Sequence[allocation.DeviceEntry]]
) -> Sequence[Card]:
    """holds: of the containers that live. allocated: by UID, what pods were granted, also those of
    which no container lives; a pod's containers hold no more than it was granted.

    A card whose share is told in percent alone, and of which nobody holds any, is left out.
    """
    minors: dict[str, int] = {}
    of_pods: dict[tuple[str, str], int] = {}
    for hold in {hold.key: hold for hold in holds}.values():
        for uuid, part in hold.parts.items():
            if uuid in hold.minors:
                minors.setdefault(uuid, hold.minors[uuid])
                whose = (uuid, hold.pod_uid)
                of_pods[whose] = of_pods.get(whose, 0) + part.memory_bytes
    for pod_uid, entries in allocated.items():
        for entry in entries:
            if entry.id is not None:
                minors.setdefault(entry.id, entry.minor)
                memory_bytes = entry.resources.get(names.RESOURCE_MEMORY, 0)
                whose = (entry.id, pod_uid)
                of_pods[whose] = max(of_pods.get(whose, 0), memory_bytes)
    total: dict[str, int] = {}
    for (uuid, _), memory_bytes in of_pods.items():
        total[uuid] = total.get(uuid, 0) + memory_bytes
    return [Card(uuid, minors[uuid], each) for uuid, each in total.items() if each]
