"""The dialects that this scheduler can read. Finds which of them a pod uses.

A pod may request shares in one dialect that is on. A pod with keys of two dialects, or of one that
is off, is refused, because some of these keys would have no effect.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Final

from gpuslice.contract import dialects as known
from gpuslice.contract import grant_file, names, quantity
from gpuslice.contract.dialects import DIALECTS, HAMI, KAI, KOORDINATOR, VOLCANO, Dialect
from scheduler.dialects import hami, kai, koordinator, volcano
from scheduler.dialects.reading import (
    PodFields,
    Reader,
    Reading,
    RequestError,
    annotation,
    check_modes,
    invalid,
    policy,
)

Enabled = frozenset[str] | None
"""The names of the dialects that are on. None: all, to read a pod that any scheduler has bound."""
DEFAULT: Final[Enabled] = frozenset({KOORDINATOR.name})

READERS: Final[dict[Dialect, Reader]] = {
    KOORDINATOR: koordinator.read,
    KAI: kai.read,
    VOLCANO: volcano.read,
    HAMI: hami.read,
}

RESOURCES: Final = frozenset(name for dialect in DIALECTS for name in dialect.resources)
"""The resource names of all dialects."""


def read(
    pod: PodFields, enabled: Enabled, readers: Mapping[Dialect, Reader] = READERS
) -> Reading | None:
    """Return the pod's request, or None if it requests no share. Raise RequestError."""
    keys = [(dialect, *key) for dialect in readers for key in islice(_keys(dialect, pod), 1)]
    for dialect, key, value in keys:
        if not _is_on(dialect, enabled):
            must_be = f"absent, as the dialect {dialect.name} is off; set {dialect.switch} to true"
            raise invalid(key, value, must_be)
    if len(keys) > 1:
        (_, first, _), (_, second, value), *_ = keys
        must_be = (
            f"absent in a pod with {first}, as a pod requests shares of GPUs in one dialect;"
            " remove one of them"
        )
        raise invalid(second, value, must_be)
    used = {dialect.name for dialect, *_ in keys}
    for dialect, reader in readers.items():
        if dialect.switch and enabled is None and dialect.name not in used:
            continue  # the bound pod's whole GPUs are from a device plugin
        reading = reader(pod) if _is_on(dialect, enabled) else None
        if reading is None:
            continue
        if enabled is not None:
            check_modes(pod.annotations)
        _check_compute_policies(pod)
        return _with_policy(reading, pod, [*reading.notices, *_unread(dialect, pod, readers)])
    return None


def _with_policy(reading: Reading, pod: PodFields, notices: Sequence[str]) -> Reading:
    """Add the policy of gpuslice's own annotation, if the pod chooses none in its dialect."""
    ours, its = policy(pod.annotations), reading.policy
    if ours and its and ours is not its:
        notices = [
            *notices,
            f"metadata.annotations[{names.ANNOTATION_POLICY}]: {ours.value} has no effect: the"
            f" pod's dialect chooses {its.value}",
        ]
    return replace(reading, policy=its or ours, notices=notices)


def _check_compute_policies(pod: PodFields) -> None:
    """Refuse a compute policy that the node agent would refuse, or of a container that the pod does
    not have."""
    containers = {container.name for container in pod.containers}
    for key, text in pod.annotations.items():
        name = key.removeprefix(names.ANNOTATION_COMPUTE_PREFIX)
        if key != names.ANNOTATION_COMPUTE and name == key:
            continue
        if text not in {*grant_file.Policy}:
            raise invalid(annotation(key), repr(text), grant_file.POLICIES_TEXT)
        if name not in {names.ANNOTATION_COMPUTE, *containers}:
            must_be = f"must be absent, as the pod has no container {name}"
            raise RequestError(f"{annotation(key)}: {must_be}")


def _unread(used: Dialect, pod: PodFields, readers: Iterable[Dialect]) -> Iterator[str]:
    """Yield a notice for each annotation by which another dialect would refine a request."""
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
    """Return whether the dialect's keys count. Annotations' names are general."""
    return not dialect.annotations or pod.scheduler_name in known.SCHEDULER_NAMES


def _is_on(dialect: Dialect, enabled: Enabled) -> bool:
    return enabled is None or not dialect.switch or dialect.name in enabled


def _keys(dialect: Dialect, pod: PodFields) -> Iterator[tuple[str, object]]:
    """Yield the pod's fields by which it requests shares in this dialect only, and their values.
    The names of whole GPUs are left out, because several dialects and device plugins read them."""
    if _counts(dialect, pod):
        keys = [key for key in dialect.annotations if key in pod.annotations]
        prefix, suffixes = dialect.container_annotation
        for suffix in suffixes:
            keys += (k for k in pod.annotations if k.startswith(prefix) and k.endswith(suffix))
        yield from ((annotation(key), pod.annotations[key]) for key in keys)
    for container in pod.containers:
        for name in dialect.resources:
            kinds = (container.requests, container.limits)
            amounts = [each[name] for each in kinds if name in each]
            asked = any(quantity.parse(amount) != quantity.Value(0) for amount in amounts)
            if asked and name not in names.RESOURCES_WHOLE:
                yield container.field(name), amounts[0]
