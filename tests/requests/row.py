"""A row of the table: a pod, and what each judge says of it."""

from __future__ import annotations

from typing import NamedTuple

from scheduler.core.request import ContainerRequest, Phase, Request
from tests.requests.pods import Json


class Row(NamedTuple):
    """says: the refusal, by the reader and by admission, or the request as `shown` has it, "" for
    none. policy: the one that refuses; "": admitted. Unreadable amounts are refused by the API
    server itself."""

    pod: Json
    says: str
    policy: str = ""


def shown(request: Request | None) -> str:
    """As `main: 2 x 50% core, 1/2`: the number of GPUs, and of each the core and the memory."""
    return "; ".join(map(_of_container, request.containers)) if request else ""


def _of_container(asked: ContainerRequest) -> str:
    phase = "" if (asked.phase, asked.order) == (Phase.MAIN, 0) else f" {_phase(asked)}"
    gpus = f"{asked.gpus} x " if asked.gpus > 1 else ""
    core = "" if asked.core_percent is None else f"{asked.core_percent}% core, "
    return f"{asked.name}{phase}: {gpus}{core}{_memory(asked)}"


def _phase(asked: ContainerRequest) -> str:
    return f"({asked.phase.value} {asked.order})"


def _memory(asked: ContainerRequest) -> str:
    if asked.memory_bytes is None:
        return str(asked.memory_ratio)
    mib, rest = divmod(asked.memory_bytes, 1 << 20)
    return f"{asked.memory_bytes} B" if rest else f"{mib} MiB"


def invalid(field: str, value: object, must_be: str) -> str:
    return f"{field}: invalid value {value}: must be {must_be}"


def annotated(key: str, value: object, must_be: str) -> str:
    return invalid(f"metadata.annotations[{key}]", value, must_be)


def identity(row: Row) -> str:
    """A test's id."""
    return f"{row.policy} {row.says[:100]}".strip() or "no request"
