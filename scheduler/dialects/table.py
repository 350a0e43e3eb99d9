"""The dialects that this scheduler reads, and which of them a pod uses. Pure.

A pod requests shares in one dialect. Two are refused, and so is one that is off, because the keys
of the second dialect, or of the one that is off, would have no effect.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Final

from gpuslice.contract import names, quantity
from gpuslice.contract.dialects import DIALECTS, HAMI, KAI, KOORDINATOR, VOLCANO, Dialect
from scheduler.dialects import hami, kai, koordinator, volcano
from scheduler.dialects.reading import PodFields, Reader, Reading, RequestError, policy

Enabled = frozenset[str] | None
"""Names of the dialects that are on. None: all, for a pod that some scheduler has bound."""
DEFAULT: Final[Enabled] = frozenset({KOORDINATOR.name})

READERS: Final[dict[Dialect, Reader]] = {
    KOORDINATOR: koordinator.read,
    KAI: kai.read,
    VOLCANO: volcano.read,
    HAMI: hami.read,
}

RESOURCES: Final = frozenset(name for dialect in DIALECTS for name in dialect.resources)
"""Names by which a dialect requests shares."""


def read(
    pod: PodFields, enabled: Enabled, readers: Mapping[Dialect, Reader] = READERS
) -> Reading | None:
    """The pod's request; None: no share. Raises RequestError."""
    keys = [(dialect, key) for dialect in readers for key in islice(_keys(dialect, pod), 1)]
    for dialect, key in keys:
        if not _is_on(dialect, enabled):
            raise RequestError(
                f"{key}: must be absent, as the dialect {dialect.name} is off; set"
                f" {dialect.switch} to true"
            )
    if len(keys) > 1:
        (_, first), (_, second), *_ = keys
        raise RequestError(
            f"{second}: must be absent in a pod with {first}, as a pod requests shares of GPUs in"
            " one dialect; remove one of them"
        )
    used = {dialect.name for dialect, _ in keys}
    for dialect, reader in readers.items():
        if dialect.switch and enabled is None and dialect.name not in used:
            continue  # a device plugin allocated its whole GPUs
        reading = reader(pod) if _is_on(dialect, enabled) else None
        if reading is None:
            continue
        return _with_policy(reading, pod, [*reading.notices, *_unread(dialect, pod, readers)])
    return None


def _with_policy(reading: Reading, pod: PodFields, notices: Sequence[str]) -> Reading:
    """The policy of our own annotation counts in every dialect that has none for the pod."""
    ours, its = policy(pod.annotations), reading.policy
    if ours and its and ours is not its:
        notices = [
            *notices,
            f"metadata.annotations[{names.ANNOTATION_POLICY}]: {ours.value} has no effect: the"
            f" pod's dialect chooses {its.value}",
        ]
    return replace(reading, policy=its or ours, notices=notices)


def _unread(used: Dialect, pod: PodFields, readers: Iterable[Dialect]) -> Iterator[str]:
    """Notices of the annotations by which other dialects refine a request."""
    for other in readers:
        if other is used or not _counts(other, pod):
            continue
        for key in other.hints:
            if key in pod.annotations:
                yield (
                    f"metadata.annotations[{key}] has no effect: only the dialect {other.name}"
                    f" reads it, and the pod requests shares in the dialect {used.name}"
                )


def _counts(dialect: Dialect, pod: PodFields) -> bool:
    """Whether its annotations mean anything in the pod."""
    own = dialect.scheduler_name if dialect.annotations else ""
    return not own or pod.scheduler_name == own


def _is_on(dialect: Dialect, enabled: Enabled) -> bool:
    return enabled is None or not dialect.switch or dialect.name in enabled


def _keys(dialect: Dialect, pod: PodFields) -> Iterator[str]:
    """The fields that only this dialect reads. Device plugins allocate whole GPUs where no dialect
    does, under names that several systems read."""
    if _counts(dialect, pod):
        keys = [key for key in dialect.annotations if key in pod.annotations]
        prefix, suffixes = dialect.container_annotation
        for suffix in suffixes:
            keys += (k for k in pod.annotations if k.startswith(prefix) and k.endswith(suffix))
        yield from (f"metadata.annotations[{key}]" for key in keys)
    for container in pod.containers:
        for name in dialect.resources:
            kinds = (container.limits, container.requests)
            amounts = [each[name] for each in kinds if name in each]
            asked = any(quantity.parse(amount) != quantity.Value(0) for amount in amounts)
            if asked and name not in names.RESOURCES_WHOLE:
                yield f"container {container.name}: {name}"
