"""Physical memory under the library: charged to its GPU until nothing holds it, in any order.

Each test is a program in a process of its own; `took` compares the daemon's figure of the GPU with
the region's.
"""

from __future__ import annotations

import pytest

from tests.shim.conftest import GIB, MIB, Limited
from tests.shim.exact import PHYSICAL

pytestmark = pytest.mark.sim

BEGIN = PHYSICAL


def test_row_13_vmm_and_sharing(limited: Limited) -> None:
    """Create, map, release, unmap; retain; export and import: charged until the last holder."""
    limited(GIB)("""
at = reserve(64 * MIB)
took(0)
handle = create(20 * MIB)
took(20 * MIB)
map(at, handle, 20 * MIB); allow(at, 20 * MIB)
release(handle)
took(20 * MIB)
assert d.cuMemRelease(handle)[0] == INVALID
again = must(d.cuMemRetainAllocationHandle(at + 3 * MIB))
unmap(at, 20 * MIB)
took(20 * MIB)
release(again)
took(0)
# Memory that this process exports and imports again is charged once.
mine = create(BLOCK, shareable=FD)
fd = int(must(d.cuMemExportToShareableHandle(mine, FD, 0)))
theirs = must(d.cuMemImportFromShareableHandle(fd, FD))
os.close(fd)
map(at, theirs, BLOCK)
took(BLOCK)
unmap(at, BLOCK); release(theirs)
took(BLOCK)
release(mine)
took(0)
""")


_PROGRAMS = {
    "memory is charged to the gpu that it was asked for": """
other = create(64 * MIB, ordinal=1)
took(0); took(64 * MIB, 1)
assert refused(BLOCK, ordinal=1)
host_memory = create(4 * MIB, kind=L.CU_MEM_LOCATION_TYPE_HOST)
took(0); took(64 * MIB, 1)
release(host_memory)
release(other)
took(0, 1)
assert d.cuMemCreate(BLOCK, prop(9), 0)[0] == d.CUresult.CUDA_ERROR_INVALID_DEVICE
""",
    "one unmapping of several mappings": """
at = reserve(8 * BLOCK)
for index in range(4):
    handle = create(BLOCK)
    map(at + index * BLOCK, handle, BLOCK)
    release(handle)
assert d.cuMemUnmap(at, 3 * BLOCK + MIB)[0] == INVALID
assert d.cuMemUnmap(at, 5 * BLOCK)[0] == INVALID
took(4 * BLOCK)
unmap(at + BLOCK, 2 * BLOCK)
took(2 * BLOCK)
unmap(at, BLOCK); unmap(at + 3 * BLOCK, BLOCK)
took(0)
""",
    "what the driver refuses changes nothing": """
at = reserve(4 * BLOCK)
handle = create(BLOCK)
for wrong in (
    lambda: d.cuMemCreate(BLOCK + 1, prop(), 0),
    lambda: d.cuMemMap(at, 2 * BLOCK, 0, handle, 0),
    lambda: d.cuMemMap(at + 9 * BLOCK, BLOCK, 0, handle, 0),
    lambda: d.cuMemUnmap(at, BLOCK),
    lambda: d.cuMemRelease(12345),
    lambda: d.cuMemRetainAllocationHandle(at),
    lambda: d.cuMemImportFromShareableHandle(0, FD),
):
    assert wrong()[0] == INVALID, wrong
    took(BLOCK)
control(op="fail", gpu=0, call="cuMemRelease", code=999, count=1)
assert d.cuMemRelease(handle)[0] == d.CUresult.CUDA_ERROR_UNKNOWN
took(BLOCK)
map(at, handle, BLOCK)
release(handle)
control(op="fail", gpu=0, call="cuMemUnmap", code=999, count=1)
assert d.cuMemUnmap(at, BLOCK)[0] == d.CUresult.CUDA_ERROR_UNKNOWN
took(BLOCK)
unmap(at, BLOCK)
took(0)
""",
    "bound memory stays charged until it is unbound": """
def group(bytes):
    wanted = d.CUmulticastObjectProp()
    wanted.numDevices, wanted.size = 1, bytes
    made = must(d.cuMulticastCreate(wanted))
    must(d.cuMulticastAddDevice(made, 0))
    return made
first = group(8 * BLOCK)
took(0)
handle = create(BLOCK)
must(d.cuMulticastBindMem(first, 2 * BLOCK, handle, 0, BLOCK, 0))
release(handle)
took(BLOCK)
assert d.cuMulticastUnbind(first, 0, 0, BLOCK)[0] == INVALID
took(BLOCK)
must(d.cuMulticastUnbind(first, 0, 2 * BLOCK, BLOCK))
took(0)
at, handle = reserve(BLOCK), create(BLOCK)
map(at, handle, BLOCK)
must(d.cuMulticastBindAddr(first, 0, at, BLOCK, 0))
release(handle); unmap(at, BLOCK)
took(BLOCK)
window = reserve(8 * BLOCK)
map(window, first, 8 * BLOCK)
release(first)
took(BLOCK)
unmap(window, 8 * BLOCK)
took(0)
""",
    "mappings behind memory of the host end with their range": """
at = reserve(4 * BLOCK)
parts = [create(BLOCK, kind=L.CU_MEM_LOCATION_TYPE_HOST), create(BLOCK), create(BLOCK)]
for index, part in enumerate(parts):
    map(at + index * BLOCK, part, BLOCK)
    release(part)
took(2 * BLOCK)
unmap(at, 3 * BLOCK)
took(0)
""",
}
_LIMITS = {
    "memory is charged to the gpu that it was asked for": (GIB, 64 * MIB),
}


@pytest.mark.parametrize("name", _PROGRAMS)
def test_a_program_is_charged_its_physical_memory(limited: Limited, name: str) -> None:
    """It is charged until nothing holds the memory, in any order."""
    limited(*_LIMITS.get(name, (GIB,)))(_PROGRAMS[name])


@pytest.mark.parametrize("seed", range(4))
def test_any_order_of_calls(limited: Limited, seed: int) -> None:
    """Random calls against a model: an object costs its size while it has handles or mappings."""
    limited(GIB // 4)(f"""
random.seed({seed})
SPACE = 96
at = reserve(SPACE * BLOCK)
class Memory:
    def __init__(self, blocks):
        self.blocks, self.handles, self.places = blocks, 0, set()
memories, by_handle, mapped = [], {{}}, {{}}
def alive():
    return sum(m.blocks for m in memories if m.handles or m.places)
for step in range(1500):
    match random.choice(("create", "map", "map", "unmap", "retain", "release", "release")):
        case "create":
            blocks = random.choice((1, 1, 2, 10, 40))
            code, handle = d.cuMemCreate(blocks * BLOCK, prop(), 0)
            fits = (alive() + blocks) * BLOCK <= GIB // 4 - before[0][1]
            assert (code == OK) == fits, (code, fits)
            if fits:
                made = Memory(blocks)
                made.handles = 1
                memories.append(made)
                by_handle[int(handle)] = made
        case "map" if by_handle:
            handle, memory = random.choice(list(by_handle.items()))
            place = random.randrange(SPACE)
            room = all(not (p < place + memory.blocks and place < p + m.blocks)
                       for p, m in mapped.items()) and place + memory.blocks <= SPACE
            room = room and memory.handles
            code = d.cuMemMap(at + place * BLOCK, memory.blocks * BLOCK, 0, handle, 0)[0]
            assert (code == OK) == bool(room), (code, room)
            if room:
                memory.places.add(place)
                mapped[place] = memory
        case "unmap" if mapped:
            place = random.choice(list(mapped))
            memory = mapped.pop(place)
            memory.places.remove(place)
            unmap(at + place * BLOCK, memory.blocks * BLOCK)
        case "retain" if mapped:
            place, memory = random.choice(list(mapped.items()))
            handle = must(d.cuMemRetainAllocationHandle(
                at + place * BLOCK + random.randrange(memory.blocks * BLOCK)))
            by_handle[int(handle)] = memory
            memory.handles += 1
        case "release" if by_handle:
            handle, memory = random.choice(list(by_handle.items()))
            assert (d.cuMemRelease(handle)[0] == OK) == (memory.handles > 0)
            memory.handles -= memory.handles > 0
            if not memory.handles and not memory.places:
                del by_handle[handle]
    if step % 16 == 0:
        took(alive() * BLOCK)
took(alive() * BLOCK)
""")
