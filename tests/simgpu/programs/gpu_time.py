"""Programs that check when a GPU does its work: `python -m tests.simgpu.programs.gpu_time NAME`.

Each checks what its name and docstring state, and ends with status 0 or a traceback.
"""

from __future__ import annotations

import ctypes
import itertools
import sys
import time
from typing import Any, Final

from cuda.bindings import driver

from tests.simgpu.programs.cuda_programs import R, begin, ok

MS: Final = 10**6
PTX: Final = b"""
.version 8.0
.target sm_80
.address_size 64
// simgpu: duration_argument=1
.visible .entry busy(.param .u32 before, .param .u64 ns) { ret; }
"""


def kernel() -> Any:
    return ok(driver.cuModuleGetFunction(ok(driver.cuModuleLoadData(PTX)), b"busy"))


def launch(function: Any, duration_ns: int, stream: Any = 0) -> Any:
    arguments = ((0, duration_ns), (ctypes.c_uint32, ctypes.c_uint64))
    return driver.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, arguments, 0)[0]


def busy(function: Any, duration_ns: int, stream: Any = 0) -> None:
    assert launch(function, duration_ns, stream) is R.CUDA_SUCCESS


def elapsed_ms(first: Any, second: Any) -> float:
    return float(ok(driver.cuEventElapsedTime(first, second)))


def events_have_exact_instants() -> None:
    """No other program uses the GPU. Later submissions do not change the time of an event."""
    begin()
    function, stream = kernel(), ok(driver.cuStreamCreate(1))
    events = [ok(driver.cuEventCreate(0)) for _ in range(4)]
    for event in events:
        busy(function, 20 * MS, stream)
        ok(driver.cuEventRecord(event, stream))
    assert driver.cuEventQuery(events[0])[0] is R.CUDA_ERROR_NOT_READY
    assert driver.cuEventElapsedTime(events[0], events[3])[0] is R.CUDA_ERROR_NOT_READY
    ok(driver.cuEventSynchronize(events[1]))
    ok(driver.cuEventQuery(events[0]))
    assert driver.cuEventQuery(events[3])[0] is R.CUDA_ERROR_NOT_READY
    for _ in range(10_000):
        busy(function, 1000, stream)
    ok(driver.cuStreamSynchronize(stream))
    for first, second in itertools.pairwise(events):
        assert abs(elapsed_ms(first, second) - 20) < 0.001
    assert abs(elapsed_ms(events[0], events[3]) - 60) < 0.001


def an_event_waits_for_its_contexts_time_slice() -> None:
    """Another process keeps the GPU busy. An event of an idle stream has no earlier instant than
    the time slice in which the kernel behind it runs."""
    begin()
    function, stream = kernel(), ok(driver.cuStreamCreate(1))
    first, last = ok(driver.cuEventCreate(0)), ok(driver.cuEventCreate(0))
    exact = 0
    for _ in range(50):
        ok(driver.cuEventRecord(first, stream))
        busy(function, MS // 10, stream)
        ok(driver.cuEventRecord(last, stream))
        ok(driver.cuEventSynchronize(last))
        exact += abs(elapsed_ms(first, last) - 0.1) < 0.001
    assert exact >= 25, exact


def streams_run_at_the_same_time() -> None:
    """Work of 8 streams ends together. Streams beyond share queues."""
    begin()
    function, streams = kernel(), [ok(driver.cuStreamCreate(1)) for _ in range(9)]
    first, events = ok(driver.cuEventCreate(0)), [ok(driver.cuEventCreate(0)) for _ in streams]
    ok(driver.cuEventRecord(first, streams[0]))
    for stream, event in zip(streams, events, strict=True):
        for _ in range(2):
            busy(function, 200 * MS, stream)
        ok(driver.cuEventRecord(event, stream))
    ok(driver.cuCtxSynchronize())
    took_ms = [elapsed_ms(first, event) for event in events]
    assert all(400 <= each < 600 for each in took_ms[:8]), took_ms
    assert 800 <= took_ms[8] < 1000, took_ms


def a_stream_waits_for_an_event_of_another() -> None:
    """The wait is exact, and other streams go on meanwhile."""
    begin()
    function, (slow, fast, free) = kernel(), [ok(driver.cuStreamCreate(1)) for _ in range(3)]
    slow_done, fast_done, free_done = (ok(driver.cuEventCreate(0)) for _ in range(3))
    busy(function, 300 * MS, slow)
    ok(driver.cuEventRecord(slow_done, slow))
    ok(driver.cuStreamWaitEvent(fast, slow_done, 0))
    busy(function, 50 * MS, fast)
    ok(driver.cuEventRecord(fast_done, fast))
    busy(function, 100 * MS, free)
    ok(driver.cuEventRecord(free_done, free))
    ok(driver.cuStreamSynchronize(free))
    ok(driver.cuCtxSynchronize())
    assert abs(elapsed_ms(slow_done, fast_done) - 50) < 0.001
    assert elapsed_ms(free_done, slow_done) > 0


def the_legacy_stream_waits_for_blocking_streams() -> None:
    """Blocking streams and the legacy stream wait for each other, and others do not."""
    begin()
    function = kernel()
    blocking, other = ok(driver.cuStreamCreate(0)), ok(driver.cuStreamCreate(1))
    streams = (blocking, 0, blocking, other)
    events = [ok(driver.cuEventCreate(0)) for _ in streams]
    for stream, event in zip(streams, events, strict=True):
        busy(function, 200 * MS, stream)
        ok(driver.cuEventRecord(event, stream))
    ok(driver.cuCtxSynchronize())
    for first, second in itertools.pairwise(events[:3]):
        assert abs(elapsed_ms(first, second) - 200) < 0.001
    assert elapsed_ms(events[3], events[1]) > 0


def a_full_queue_makes_a_launch_wait() -> None:
    """1,024 launches return at once. The next one returns when the first kernel is done."""
    begin()
    function, began_s = kernel(), time.monotonic()
    busy(function, 1000 * MS)
    for _ in range(1023):
        busy(function, 0)
    if time.monotonic() < began_s + 0.9:
        assert driver.cuStreamQuery(0)[0] is R.CUDA_ERROR_NOT_READY
    busy(function, 0)
    assert time.monotonic() >= began_s + 1
    ok(driver.cuCtxSynchronize())


def a_kernel_takes_its_argument() -> None:
    """The argument is also used in a capture and in a node of a graph."""
    begin()
    function, stream = kernel(), ok(driver.cuStreamCreate(0))
    mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    ok(driver.cuStreamBeginCapture(stream, mode))
    for _ in range(5):
        busy(function, 10 * MS, stream)
    graph = ok(driver.cuStreamEndCapture(stream))
    before, duration = ctypes.c_uint32(0), ctypes.c_uint64(50 * MS)
    pointers = (ctypes.c_void_p * 2)(ctypes.addressof(before), ctypes.addressof(duration))
    node = driver.CUDA_KERNEL_NODE_PARAMS()
    node.func = function
    node.gridDimX = node.gridDimY = node.gridDimZ = 1
    node.blockDimX = node.blockDimY = node.blockDimZ = 1
    node.kernelParams = ctypes.addressof(pointers)
    added = ok(driver.cuGraphAddKernelNode(graph, None, 0, node))
    executable = ok(driver.cuGraphInstantiate(graph, 0))
    events = [ok(driver.cuEventCreate(0)) for _ in range(3)]
    ok(driver.cuEventRecord(events[0], stream))
    ok(driver.cuGraphLaunch(executable, stream))
    ok(driver.cuEventRecord(events[1], stream))
    duration.value = 150 * MS
    ok(driver.cuGraphExecKernelNodeSetParams(executable, added, node))
    ok(driver.cuGraphLaunch(executable, stream))
    ok(driver.cuEventRecord(events[2], stream))
    ok(driver.cuStreamSynchronize(stream))
    assert elapsed_ms(events[0], events[1]) >= 100
    assert abs(elapsed_ms(events[1], events[2]) - 200) < 0.001
    assert launch(function, 3601 * 1000 * MS) is R.CUDA_ERROR_INVALID_VALUE


def an_ended_contexts_work_is_dropped() -> None:
    begin()
    other = ok(driver.cuCtxCreate(None, 0, driver.CUdevice(0)))
    busy(kernel(), 3600 * 1000 * MS)
    ok(driver.cuCtxDestroy(other))
    busy(kernel(), MS)
    ok(driver.cuCtxSynchronize())


if __name__ == "__main__":
    globals()[sys.argv[1]]()
