"""The dialects that this scheduler reads, and which of them a pod uses. Pure.

A pod requests shares in one dialect. Two are refused, and so is one that is off, because the pod
would run without what the other one's keys request.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Final

from contract import names, quantity
from contract.dialects import DIALECTS, HAMI, KAI, KOORDINATOR, VOLCANO, Dialect
from scheduler.dialects import hami, kai, koordinator, volcano
from scheduler.dialects.reading import PodFields, Reader, Reading, RequestError

Enabled = frozenset[str] | None
"""Names of the dialects that are on, and of what else a Reading needs. None: all, for a pod that
is bound, by whatever scheduler."""
DEFAULT: Final[Enabled] = frozenset({KOORDINATOR.name})

READERS: Final[dict[Dialect, Reader]] = {
    KOORDINATOR: koordinator.read,
    KAI: kai.read,
    VOLCANO: volcano.read,
    HAMI: hami.read,
}

RESOURCES: Final = frozenset(name for dialect in DIALECTS for name in dialect.resources)
"""By which any dialect requests shares."""


def read(
    pod: PodFields, enabled: Enabled, readers: Mapping[Dialect, Reader] = READERS
) -> Reading | None:
    """What the pod requests; None: no share. Raises RequestError."""
    found: Reading | None = None
    for dialect, reader in readers.items():
        if enabled is not None and dialect.switch and dialect.name not in enabled:
            _refuse_off(dialect, reader, pod)
            continue
        if enabled is None and dialect.switch and next(_keys(dialect, pod), None) is None:
            continue  # a device plugin allocated its whole GPUs
        reading = reader(pod)
        if reading is None:
            continue
        if found is not None:
            raise RequestError(
                f"{reading.keys[0]}: must be absent in a pod with {found.keys[0]}, as a pod"
                " requests shares of GPUs in one dialect; remove one of them"
            )
        found = reading
    if found is not None and enabled is not None:
        for name in found.switches.keys() - enabled:
            raise RequestError(
                f"{found.keys[0]}: must be absent, as {name} is off; {found.switches[name]}"
            )
    return found


def _refuse_off(dialect: Dialect, reader: Reader, pod: PodFields) -> None:
    key = next(_keys(dialect, pod), None)
    if key is None:
        return
    with suppress(RequestError):
        if reader(pod) is None:
            return
    raise RequestError(
        f"{key}: must be absent, as the dialect {dialect.name} is off; set {dialect.switch} to true"
    )


def _keys(dialect: Dialect, pod: PodFields) -> Iterator[str]:
    """The fields that only this dialect reads. Device plugins allocate whole GPUs where no dialect
    does, under names that HAMi reads too."""
    prefix, suffixes = dialect.container_annotation
    own = not dialect.scheduler_name or pod.scheduler_name == dialect.scheduler_name
    for key in pod.annotations if own else ():
        by_container = prefix and key.startswith(prefix) and key.endswith(suffixes)
        if by_container or key in dialect.annotations:
            yield f"metadata.annotations[{key}]"
    for container in pod.containers:
        for name, value in {**container.limits, **container.requests}.items():
            own = name in dialect.resources and name not in names.RESOURCES_WHOLE
            if own and quantity.parse(value) != quantity.Value(0):
                yield f"container {container.name}: {name}"
