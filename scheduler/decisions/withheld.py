"""Reports entries of cordoned-gpus and excluded-gpus that match no GPU of the node. Pure.

A misspelt UUID, or an index, has no effect: new shares would go to the GPU that the operator meant.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gpuslice.contract import names
from scheduler.kubernetes.facts import DeviceFacts, NodeFacts

_NAMED_AT_MOST: Final = 3


def without_effect(node: NodeFacts, device: DeviceFacts) -> Iterator[str]:
    """A text for each of the node's annotations that names what its inventory does not list."""
    for key, withheld in (
        (names.ANNOTATION_CORDONED_GPUS, node.cordoned),
        (names.ANNOTATION_EXCLUDED_GPUS, node.excluded),
    ):
        unknown = sorted(withheld - {gpu.uuid for gpu in device.gpus}) if withheld else ()
        if unknown:
            named, more = ", ".join(unknown[:_NAMED_AT_MOST]), len(unknown) - _NAMED_AT_MOST
            value = f"{named} and {more} more" if more > 0 else named
            yield (
                f"metadata.annotations[{key}]: invalid value {value}: must be UUIDs of GPUs in the"
                " node's Device; it has no effect"
            )
