"""A row of the table: a pod, and what each judge says of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from scheduler.core.request import ContainerRequest, Phase, Request
from tests.requests.pods import Json, asking


class Row(NamedTuple):
    """says: the refusal, by the reader and by admission, or the request as `shown` has it, "" for
    none. policy: the one that refuses; "": admitted. Unreadable amounts are refused by the API
    server itself."""

    pod: Json
    says: str
    policy: str = ""


def shown(request: Request | None) -> str:
    """Return `main: 2 x 50% core, 1/2`: the number of GPUs; of each the core and the memory."""
    return "; ".join(map(_of_container, request.containers)) if request else ""


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
    """A container whose amount of one resource is refused, beside others. made: of containers."""
    raw = made(*others, asking(dict(asked), name, **more))
    return Row(raw, invalid(f"container {name}: {key}", asked[key], must_be), policy)


def identity(row: Row) -> str:
    """A test's id."""
    return f"{row.policy} {row.says[:100]}".strip() or "no request"
