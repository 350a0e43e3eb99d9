"""Programs over numba-cuda with its compiler: `python -m tests.simgpu.programs.numba_programs
NAME`.

As in cuda_programs.py, each ends with status 0 or with a traceback. Kernels compute nothing, so no
result is checked.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import Any, Final

import _numba_cuda_redirector  # noqa: F401  # puts numba-cuda in the place of numba.cuda
import numpy as np
from numba import cuda, vectorize

# Small launches; numba warns that they leave a GPU idle.
warnings.simplefilter("ignore")

TABLE: Final = np.arange(10, dtype=np.float32)


@cuda.jit
def add_one(given: Any, taken: Any) -> None:
    i = cuda.grid(1)
    if i < given.size:
        taken[i] = given[i] + 1


@cuda.jit(fastmath=True, lineinfo=True)
def with_memories(values: Any) -> None:
    """Shared and constant memory, atomics, a barrier of the block."""
    shared = cuda.shared.array(64, dtype=np.float32)
    table = cuda.const.array_like(TABLE)
    i = cuda.threadIdx.x
    shared[i] = values[i] + table[i % 10]
    cuda.syncthreads()
    cuda.atomic.add(values, 0, shared[63 - i])


def kernels() -> None:
    array = cuda.to_device(np.arange(1024, dtype=np.float32))
    add_one[4, 256](array, array)
    with_memories[1, 64](array)
    with_memories[1, 64](array)
    cuda.synchronize()
    assert array.copy_to_host().shape == (1024,)


def libraries() -> None:
    """Python functions that numba compiles: a vectorised one, a reduction."""

    @vectorize(["float32(float32, float32)"], target="cuda")
    def added(a: Any, b: Any) -> Any:
        return a + b

    ones = np.ones(100, np.float32)
    assert added(ones, ones).shape == (100,)
    cuda.reduce(lambda a, b: a + b)(np.arange(1000, dtype=np.float64))


def streams_and_memories() -> None:
    stream = cuda.stream()
    host = np.arange(1 << 20, dtype=np.float64)
    with cuda.pinned(host):
        device = cuda.to_device(host, stream=stream)
        back = np.zeros_like(host)
        device.copy_to_host(back, stream=stream)
        stream.synchronize()
    assert (back == host).all()
    start, end = cuda.event(), cuda.event()
    start.record(stream)
    add_one[4, 256, stream](device, device)
    end.record(stream)
    end.synchronize()
    assert cuda.event_elapsed_time(start, end) >= 0
    mapped, managed = cuda.mapped_array(16), cuda.managed_array(16)
    for array in (mapped, managed):
        array[:] = 3
        add_one[1, 16](array, array)
    cuda.synchronize()
    cuda.profile_start()
    cuda.profile_stop()


PROGRAMS: Final[dict[str, Callable[[], None]]] = {
    program.__name__: program for program in (kernels, libraries, streams_and_memories)
}

if __name__ == "__main__":
    PROGRAMS[sys.argv[1]]()
