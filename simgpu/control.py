"""The control socket: the GPUs' state, faults and latencies, for `python -m simgpu`'s commands."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from simgpu.config import HostConfig
from simgpu.faults import RECOVERY_ACTIONS, is_call
from simgpu.seat import Seat
from simgpu.wire import Op

log = logging.getLogger(__name__)
CONTROL_LINE_BYTES: Final = 65536
_LATENCY_MOST_NS: Final = 3600 * 10**9
"""One hour. Such a delay simulates a GPU that hangs."""


class Control:
    """Answers lines of JSON: {"op": NAME, ...} gets {"ok": true, ...} or {"error": TEXT}."""

    def __init__(self, host: HostConfig, seats: Mapping[int, Seat], stop: Callable[[], None]):
        self._host = host
        self._seats = seats
        self._stop = stop

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                writer.write(json.dumps(self._answer(line)).encode() + b"\n")
                await writer.drain()
        except (OSError, ValueError) as error:
            log.warning("control: %s", error)
        finally:
            writer.close()

    def _answer(self, line: bytes) -> dict[str, Any]:
        try:
            request = json.loads(line)
            return {"ok": True, **self._do(request)}
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            return {"error": f"{type(error).__name__}: {error}"}

    def _do(self, request: dict[str, Any]) -> dict[str, Any]:
        match request["op"]:
            case "status":
                return self._status()
            case "stop":
                self._stop()
            case "lose":
                self._seat(request).lose(True)
            case "restore":
                self._seat(request).lose(False)
            case "latency":
                self._latency(request)
            case "recovery":
                action, allowed = request["action"], ", ".join(RECOVERY_ACTIONS)
                if action not in RECOVERY_ACTIONS:
                    raise ValueError(f"action: invalid value {action!r}: must be one of {allowed}")
                self._seat(request).needs(RECOVERY_ACTIONS[action])
            case "fail":
                seat = self._seat(request)
                count = _count(request, "count", 2**32)
                seat.gpu.faults.fail(_call(request), _count(request, "code", 999), count)
                seat.show_faults()
            case other:
                raise ValueError(f"no operation {other!r}")
        return {}

    def _latency(self, request: Mapping[str, Any]) -> None:
        seat, wanted_ns = self._seat(request), _count(request, "ns", _LATENCY_MOST_NS)
        if request["call"] in Op.__members__:
            seat.latency_ns[Op[request["call"]]] = wanted_ns
        else:
            seat.gpu.faults.delay(_call(request), wanted_ns)
            seat.show_faults()

    def _seat(self, request: Mapping[str, Any]) -> Seat:
        minor = request["gpu"]
        if minor not in self._seats:
            raise ValueError(f"gpu: invalid value {minor!r}: must be a GPU's minor number")
        return self._seats[minor]

    def _status(self) -> dict[str, Any]:
        now_ns = time.monotonic_ns()
        rows = []
        for minor, seat in self._seats.items():
            seat.tick(now_ns)
            rows.append(
                {
                    "minor": minor,
                    "uuid": seat.gpu.config.uuid,
                    "name": seat.gpu.config.name,
                    "total_bytes": seat.gpu.config.memory_bytes,
                    "used_bytes": seat.gpu.used_bytes,
                    "clients": seat.gpu.clients,
                    "lost": seat.gpu.lost,
                }
            )
        return {
            "pid": os.getpid(),
            "driver_version": self._host.driver_version,
            "cuda_version": self._host.cuda_version,
            "host": repr(self._host),
            "gpus": rows,
        }


def _call(request: Mapping[str, Any]) -> str:
    name = request["call"]
    if not is_call(name):
        raise ValueError(
            f"call: invalid value {name!r}: must be an operation or an entry of the driver"
        )
    return str(name)


def _count(request: Mapping[str, Any], key: str, limit: int) -> int:
    value = request[key]
    if not isinstance(value, int) or not 0 <= value <= limit:
        raise ValueError(f"{key}: invalid value {value!r}: must be 0 to {limit}")
    return value
