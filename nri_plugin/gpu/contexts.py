"""Measures in a child process how much GPU memory an empty CUDA context takes; grants contain it.

The child (gpuslice/gpu/context_size.py) takes half a GiB of a GPU for a moment. Therefore each GPU
product is measured only once per driver version, on a GPU that is offered for shares and has no
process. record.py keeps the size. Until it is known, grants contain CONTEXT_BYTES_ASSUMED, and the
measured overhead includes the difference. Measurements run one at a time; nothing waits for them.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Final

from gpuslice.gpu import answers
from gpuslice.kube.log_lines import Line
from nri_plugin.child import Child
from nri_plugin.gpu.inventory import Inventory
from nri_plugin.gpu.record import model_key
from nri_plugin.policy.model import Gpu
from nri_plugin.policy.refusals import ChildError

_LOG: Final = logging.getLogger(__name__)

_LOOK_S: Final = 1.0


@dataclass
class Contexts:
    """Measures contexts. A product is tried at most once per `min_interval_s`, each time on another
    GPU. deadline_s: of one measurement. now: a monotonic clock in seconds."""

    environment: Mapping[str, str]
    inventory: Inventory
    deadline_s: float = 30.0
    min_interval_s: float = 60.0
    now: Callable[[], float] = time.monotonic
    command: Sequence[str] = (sys.executable, "-m", "gpuslice.gpu.context_size")
    _children: dict[str, Child] = field(default_factory=dict)
    _tries: dict[str, tuple[int, float]] = field(default_factory=dict)
    _logged: dict[str, str] = field(default_factory=dict)

    @property
    def sizes(self) -> Mapping[str, int]:
        """Return the known sizes in bytes by GPU UUID."""
        known = self.inventory.record.contexts
        sizes = {gpu.uuid: known.get(self._key(gpu)) for gpu in self.inventory.seen}
        return {uuid: size for uuid, size in sizes.items() if size is not None}

    async def run(self, free: Callable[[], Iterable[Gpu]]) -> None:
        """Measure until cancelled. free: returns the GPUs on which a context may be created now."""
        while True:
            await self.measure(free())
            await asyncio.sleep(_LOOK_S)

    async def measure(self, gpus: Iterable[Gpu]) -> None:
        """Measure a context for each product of these GPUs whose size is unknown."""
        unknown: dict[str, list[Gpu]] = {}
        for gpu in gpus:
            if gpu.model and self._key(gpu) not in self.inventory.record.contexts:
                unknown.setdefault(self._key(gpu), []).append(gpu)
        for key, candidates in unknown.items():
            tries, tried_at = self._tries.get(key, (0, -inf))
            if self.now() - tried_at >= self.min_interval_s:
                self._tries[key] = tries + 1, self.now()
                await self._measure(candidates[tries % len(candidates)])

    def _key(self, gpu: Gpu) -> str:
        return model_key(self.inventory.driver, gpu.model)

    async def _measure(self, gpu: Gpu) -> None:
        key, record = self._key(gpu), self.inventory.record
        try:
            size_bytes = answers.context_bytes(await self._child(gpu.uuid).request())
        except (ChildError, answers.UnknownSizeError) as error:
            if self._logged.get(gpu.uuid) != str(error):
                self._logged[gpu.uuid] = str(error)
                _LOG.warning(Line("context size unknown", gpu=gpu.uuid, error=error))
            return
        record.keep(contexts={**record.contexts, key: size_bytes})
        _LOG.info(Line("context size", gpu=gpu.uuid, model=gpu.model, bytes=size_bytes))

    def _child(self, uuid: str) -> Child:
        environment = {**self.environment, "CUDA_VISIBLE_DEVICES": uuid}
        child = Child((*self.command, uuid), environment, self.deadline_s, subject="a context")
        return self._children.setdefault(uuid, child)
