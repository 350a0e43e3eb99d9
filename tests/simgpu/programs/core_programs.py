"""Programs over NVIDIA's unmodified cuda.core: `python -m tests.simgpu.programs.core_programs
NAME`.

As in cuda_programs.py, each ends with status 0 or with a traceback. Kernels compute nothing, so no
result is checked.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any, Final

import cuda.core as core
import numpy as np

SOURCE: Final = r"""
template <typename T>
__global__ void scaled_sum(const T a, const T *x, const T *y, T *out, size_t count)
{
    for (size_t i = threadIdx.x + blockIdx.x * blockDim.x; i < count; i += gridDim.x * blockDim.x)
        out[i] = a * x[i] + y[i];
}
"""
NAME: Final = "scaled_sum<float>"
CONFIG: Final = core.LaunchConfig(grid=4, block=256)


def begin() -> tuple[Any, Any]:
    device = core.Device()
    device.set_current()
    return device, device.create_stream()


def architecture(device: Any) -> str:
    return "sm_" + "".join(map(str, device.compute_capability))


def compiled(device: Any) -> Any:
    options = core.ProgramOptions(std="c++17", arch=architecture(device))
    program = core.Program(SOURCE, code_type="c++", options=options)
    return program.compile("cubin", name_expressions=(NAME,)).get_kernel(NAME)


def arguments(device: Any, stream: Any) -> tuple[Any, ...]:
    x, y, out = (device.memory_resource.allocate(4096, stream=stream) for _ in range(3))
    return np.float32(2), x, y, out, np.uint64(1024)


def launches() -> None:
    device, stream = begin()
    kernel = compiled(device)
    assert kernel.attributes.max_threads_per_block == 1024
    assert kernel.occupancy.max_active_blocks_per_multiprocessor(256, 0) == 8
    given = arguments(device, stream)
    before = stream.record()
    core.launch(stream, CONFIG, kernel, *given)
    after = stream.record()
    after.sync()
    assert before.is_done and after.is_done
    stream.sync()


def linked() -> None:
    """From PTX, by NVIDIA's linker, for a GPU that the driver's own compiler supports as well."""
    device, _ = begin()
    options = core.ProgramOptions(arch=architecture(device), relocatable_device_code=True)
    source = 'extern "C" __global__ void empty() {}'
    ptx = core.Program(source, code_type="c++", options=options).compile("ptx")
    options = core.LinkerOptions(arch=architecture(device))
    core.Linker(ptx, options=options).link("cubin").get_kernel("empty")


def buffers() -> None:
    """Data is really moved: in the device's memory, and in pinned, mapped and pooled memory."""
    device, stream = begin()
    pinned = core.LegacyPinnedMemoryResource().allocate(4096)
    seen = np.from_dlpack(pinned)
    pool = core.DeviceMemoryResource(
        device, core.DeviceMemoryResourceOptions(ipc_enabled=True, max_size=64 << 20)
    )
    for resource in (device.memory_resource, core.VirtualMemoryResource(device), pool):
        one = resource.allocate(1 << 21, stream=stream)
        two = resource.allocate(1 << 21, stream=stream)
        one.fill(7, stream=stream)
        one.copy_to(two, stream=stream)
        part = core.Buffer.from_handle(two.handle, 4096)
        part.copy_to(pinned, stream=stream)
        stream.sync()
        assert (seen.view(np.uint8) == 7).all(), resource
        seen.view(np.uint8)[:] = 0
        one.close(stream)
        two.close(stream)


def graphs() -> None:
    """A captured graph keeps its arguments in memory, and runs again at each launch."""
    device, stream = begin()
    kernel, given = compiled(device), arguments(device, stream)
    pinned = core.LegacyPinnedMemoryResource().allocate(4096)
    seen = np.from_dlpack(pinned).view(np.uint8)
    called = threading.Semaphore(0)
    builder = device.create_graph_builder().begin_building()
    given[1].fill(9, stream=builder)
    core.launch(builder, CONFIG, kernel, *given)
    given[1].copy_to(pinned, stream=builder)
    builder.callback(called.release)
    graph = builder.end_building().complete()
    graph.upload(stream)
    for _ in range(3):
        seen[:] = 0
        graph.launch(stream)
        stream.sync()
        assert (seen == 9).all()
        assert called.acquire(blocking=False)
    assert not called.acquire(blocking=False)


def branches() -> None:
    device, stream = begin()
    kernel, given = compiled(device), arguments(device, stream)
    builder = device.create_graph_builder().begin_building()
    left, right = builder.split(2)
    for branch in (left, right):
        core.launch(branch, CONFIG, kernel, *given)
    joined = type(builder).join(left, right)
    graph = joined.end_building().complete()
    graph.launch(stream)
    stream.sync()


PROGRAMS: Final[dict[str, Callable[[], None]]] = {
    program.__name__: program for program in (launches, linked, buffers, graphs, branches)
}

if __name__ == "__main__":
    PROGRAMS[sys.argv[1]]()
