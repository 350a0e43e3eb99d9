"""The replay's rules for single entries, in addition to their prototypes.

The tables list what replaces data that a trace does not have. They also list the values that cannot
be compared, with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

MEMORY_BYTES: Final[Mapping[str, Sequence[str]]] = {
    "cuMemAlloc_v2": "b",
    "cuMemAllocPitch_v2": "bd",
    "cuMemAllocManaged": "b",
    "cuMemAllocAsync": "b",
    "cuMemAllocAsync_ptsz": "b",
    "cuMemAllocFromPoolAsync": "b",
    "cuMemAllocFromPoolAsync_ptsz": "b",
    "cuMemAddressReserve": "b",
    "cuMemHostAlloc": "b",
    "cuMemAllocHost_v2": "b",
}
"""Entries that return addresses. The size in bytes is the product of these parameters."""
IMAGES: Final = {("cuModuleLoadData", "b"), ("cuModuleLoadDataEx", "b"), ("cuLibraryLoadData", "b")}
FILES: Final = {("cuModuleLoad", "b")}
KERNELS: Final[Mapping[str, str]] = {"cuModuleGetFunction": "c", "cuLibraryGetKernel": "c"}
GLOBALS: Final[Mapping[str, str]] = {"cuModuleGetGlobal_v2": "d", "cuLibraryGetGlobal": "d"}
"""Entries that find a kernel or a variable of a module, and the parameter with its name."""
FOUND_IN: Final = {*KERNELS, "cuKernelGetFunction", "cuLibraryGetModule"}
"""Entries that return a handle that belongs to the module, library or kernel in parameter b."""
LAUNCHES: Final[Mapping[str, int]] = {
    "cuLaunchKernel": 0,
    "cuLaunchCooperativeKernel": 0,
    "cuLaunchKernelEx": 1,
}
"""Entries that load a function's code if necessary, and the index of the function's parameter."""
FREES: Final = {
    "cuEventDestroy_v2",
    "cuGraphDestroy",
    "cuGraphExecDestroy",
    "cuLibraryUnload",
    "cuMemAddressFree",
    "cuMemFreeAsync",
    "cuMemFreeAsync_ptsz",
    "cuMemFreeHost",
    "cuMemFree_v2",
    "cuMemPoolDestroy",
    "cuMemRelease",
    "cuModuleUnload",
    "cuStreamDestroy_v2",
}
"""Entries that free the object in parameter a."""
UNLOADS: Final = {"cuModuleUnload", "cuLibraryUnload"}
RETAIN: Final = "cuDevicePrimaryCtxRetain"
RELEASE: Final = "cuDevicePrimaryCtxRelease_v2"
RELEASES: Final = {"cuDevicePrimaryCtxRelease", RELEASE}
PARAMETERS_OF_KERNELS: Final = {
    ("cuLaunchKernel", "j"),
    ("cuLaunchKernel", "k"),
    ("cuLaunchKernelEx", "c"),
    ("cuLaunchKernelEx", "d"),
    ("cuLaunchCooperativeKernel", "j"),
}
"""Arguments that are replaced by NULL, because the replay's kernels have no parameters."""

MOVE_BYTES: Final = ("cuMemset", "cuMemcpy")
MOST_MOVED_BYTES: Final = 64 * 2**10
MOST_HOST_BYTES: Final = 2**30
"""The longest memory set or copy, and the most host memory of the replay. Longer ones are cut,
because contents of memory are not replayed."""

SIZE_OF_GPU: Final = {"cuMemGetInfo_v2", "cuDeviceTotalMem_v2"}
"""Entries whose values depend on the limit, which are compared if it is the recorded GPU's size."""
LESS_CODE: Final = {("cuMemGetInfo_v2", "a")}
CODE_BYTES: Final = 32 * 2**20
"""How much free memory may differ, because a trace does not have the size of the code."""
UNCOMPARED: Final[Mapping[str, str]] = {
    "cuCtxGetId": "numbers are given out by the driver",
    "cuDeviceGetGraphMemAttribute": "amounts are the driver's choice",
    "cuDeviceGetUuid": "it is the recording's GPU",
    "cuDeviceGetUuid_v2": "it is the recording's GPU",
    "cuDriverGetVersion": "it is the recording's driver",
    "cuEventElapsedTime": "it is a time",
    "cuEventElapsedTime_v2": "it is a time",
    "cuFuncGetAttribute": "the trace has no code",
    "cuLibraryGetGlobal": "the trace has no code",
    "cuMemPoolGetAttribute": "amounts are the driver's choice",
    "cuModuleGetGlobal_v2": "the trace has no code",
    "cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags": "the trace has no code",
    "cuStreamGetCaptureInfo_v3": "numbers are given out by the driver",
}
"""Entries whose result is compared, but not the values that they write, with the reason."""
PROGRESS: Final = {"cuEventQuery", "cuStreamQuery"}
"""Entries whose result is not compared, because it depends on the GPU's progress."""
ADDRESSES_ASKED_FOR: Final = {"cuPointerGetAttribute", "cuMemGetAddressRange_v2"}
"""Entries that return addresses that another entry returned before."""
CONTEXT: Final = "CUcontext"
"""The type of context handles. Each is created once, and often returned again by queries."""

OUT_OF_MEMORY: Final = 2
LARGEST_SPECIAL_STREAM: Final = 2
"""The largest stream handle that is a constant: 1 is the legacy stream, 2 the per-thread stream."""
CONFIG_STREAM_AT: Final = 32
CONFIG_ATTRIBUTES_AT: Final = 40
"""The offsets in a CUlaunchConfig of the stream, and of the pointer to its attributes."""


def image(kernels: int) -> bytes:
    """Return the PTX code that replaces every module of a trace. Its kernels are k0, k1, ..."""
    entries = b"".join(b".visible .entry k%d() { ret; }\n" % number for number in range(kernels))
    head = (
        b".version 6.0\n.target sm_50\n.address_size 64\n.visible .global .align 16 .b8 g[128];\n"
    )
    return head + entries + b"\0"
