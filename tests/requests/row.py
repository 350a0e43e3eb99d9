"""A row of the table: a pod, and what the reader and admission say of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from scheduler.core.request import ContainerRequest, Phase, Request, Scope
from tests.requests.pods import Json, asking


class Row(NamedTuple):
    """says: the error text of the reader and of admission. For an accepted pod: the result of
    `shown`, or "" for no request. policy: the policy that refuses, or "" if no policy does. The API
    server itself refuses unreadable amounts. gpus: an accepted pod fits on a node of so many."""

    pod: Json
    says: str
    policy: str = ""
    gpus: int = 16


def shown(request: Request | None) -> str:
    """Return the request, for example `main: 2 x 50% core, 1/2`: two GPUs, and of each half of the
    compute and half of the memory. A scope smaller than the node is added."""
    if request is None:
        return ""
    scope = "" if request.scope is Scope.NODE else f"; in one {request.scope.name}"
    return "; ".join(map(_of_container, request.containers)) + scope


def _of_container(asked: ContainerRequest) -> str:
    phase = "" if (asked.phase, asked.order) == (Phase.MAIN, 0) else f" ({asked.phase.value}"
    order = f" {asked.order})" if phase else ""
    gpus = f"{asked.gpus} x " if asked.gpus > 1 else ""
    core = "" if asked.core_percent is None else f"{asked.core_percent}% core, "
    memory = str(asked.memory_ratio)
    if asked.memory_bytes is not None:
        mib, rest = divmod(asked.memory_bytes, 1 << 20)
        memory = f"{asked.memory_bytes} B" if rest else f"{mib} MiB"
    return f"{asked.name}{phase}{order}: {gpus}{core}{memory}"


def invalid(field: str, value: object, must_be: str) -> str:
    return f"{field}: invalid value {value}: must be {must_be}"


def annotated(key: str, value: object, must_be: str) -> str:
    return invalid(f"metadata.annotations[{key}]", value, must_be)


def wrong(
    policy: str,
    made: Callable[..., Json],
    asked: Mapping[str, Any],
    key: str,
    must_be: str,
    *others: Json,
    name: str = "main",
    **more: Any,
) -> Row:
    """Return a row whose container has a refused amount. made: makes the pod."""
    raw = made(*others, asking(dict(asked), name, **more))
    return Row(raw, invalid(f"container {name}: {key}", asked[key], must_be), policy)


def identity(row: Row) -> str:
    return f"{row.policy} {row.says[:100]}".strip() or "no request"
