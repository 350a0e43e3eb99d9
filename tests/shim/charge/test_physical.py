"""Physical memory is charged to its GPU until nothing holds it, in any order of calls."""

from __future__ import annotations

import pytest

from tests.shim.conftest import GIB, MIB, Limited
from tests.shim.exact import PHYSICAL

pytestmark = pytest.mark.sim

BEGIN = PHYSICAL


def test_row_13_vmm_and_sharing(limited: Limited) -> None:
    limited(GIB)("""
# Memory that this process exports and imports again is charged once.
mine = create(BLOCK, shareable=FD)
fd = int(must(d.cuMemExportToShareableHandle(mine, FD, 0)))
theirs = must(d.cuMemImportFromShareableHandle(fd, FD))
os.close(fd)
at = after(reserve(BLOCK), BLOCK)
map(at, theirs, BLOCK)
after(allow(at, BLOCK), BLOCK)
unmap(at, BLOCK)
after(release(theirs), BLOCK)
after(release(mine), 0)
""")


_PROGRAMS = {
    "memory is charged to the gpu that it was asked for": """
other = create(64 * MIB, ordinal=1)
took(0); took(64 * MIB, 1)
refused(d.cuMemCreate(BLOCK, prop(1), 0), 0)
host_memory = create(4 * MIB, kind=L.CU_MEM_LOCATION_TYPE_HOST)
took(0); took(64 * MIB, 1)
release(host_memory)
after(release(other), 0, 1)
refused(d.cuMemCreate(BLOCK, prop(9), 0), 0, d.CUresult.CUDA_ERROR_INVALID_DEVICE)
""",
    "one unmapping of several mappings": """
at = reserve(8 * BLOCK)
for index in range(4):
    handle = create(BLOCK)
    map(at + index * BLOCK, handle, BLOCK)
    release(handle)
refused(d.cuMemUnmap(at, 3 * BLOCK + MIB), 4 * BLOCK, INVALID)
refused(d.cuMemUnmap(at, 5 * BLOCK), 4 * BLOCK, INVALID)
after(unmap(at + BLOCK, 2 * BLOCK), 2 * BLOCK)
unmap(at, BLOCK)
after(unmap(at + 3 * BLOCK, BLOCK), 0)
""",
    "what the driver refuses changes nothing": """
UNKNOWN = d.CUresult.CUDA_ERROR_UNKNOWN
at = reserve(4 * BLOCK)
handle = create(BLOCK)
refused(d.cuMemMap(at, 2 * BLOCK, 0, handle, 0), BLOCK, INVALID)
refused(d.cuMemMap(at + 9 * BLOCK, BLOCK, 0, handle, 0), BLOCK, INVALID)
refused(d.cuMemRelease(12345), BLOCK, INVALID)
refused(d.cuMemRetainAllocationHandle(at), BLOCK, INVALID)
refused(d.cuMemImportFromShareableHandle(0, FD), BLOCK, INVALID)
fail("cuMemRelease", 999)
refused(d.cuMemRelease(handle), BLOCK, UNKNOWN)
map(at, handle, BLOCK)
release(handle)
fail("cuMemUnmap", 999)
refused(d.cuMemUnmap(at, BLOCK), BLOCK, UNKNOWN)
after(unmap(at, BLOCK), 0)
""",
    "bound memory stays charged until it is unbound": """
wanted = d.CUmulticastObjectProp()
wanted.numDevices, wanted.size = 1, 8 * BLOCK
group = must(d.cuMulticastCreate(wanted))
after(d.cuMulticastAddDevice(group, 0), 0)
handle = create(BLOCK)
must(d.cuMulticastBindMem(group, 2 * BLOCK, handle, 0, BLOCK, 0))
after(release(handle), BLOCK)
refused(d.cuMulticastUnbind(group, 0, 0, BLOCK), BLOCK, INVALID)
after(d.cuMulticastUnbind(group, 0, 2 * BLOCK, BLOCK), 0)
at, handle = reserve(BLOCK), create(BLOCK)
map(at, handle, BLOCK)
must(d.cuMulticastBindAddr(group, 0, at, BLOCK, 0))
release(handle)
after(unmap(at, BLOCK), BLOCK)
window = reserve(8 * BLOCK)
map(window, group, 8 * BLOCK)
after(release(group), BLOCK)
after(unmap(window, 8 * BLOCK), 0)
""",
    "mappings behind memory of the host end with their range": """
at = reserve(4 * BLOCK)
parts = [create(BLOCK, kind=L.CU_MEM_LOCATION_TYPE_HOST), create(BLOCK), create(BLOCK)]
for index, part in enumerate(parts):
    map(at + index * BLOCK, part, BLOCK)
    release(part)
took(2 * BLOCK)
after(unmap(at, 3 * BLOCK), 0)
""",
}


@pytest.mark.parametrize("name", _PROGRAMS)
def test_a_program_is_charged_its_physical_memory(limited: Limited, name: str) -> None:
    limited(GIB, 64 * MIB)(_PROGRAMS[name])


@pytest.mark.parametrize("seed", range(4))
def test_row_13_any_order_of_calls(limited: Limited, seed: int) -> None:
    """Random calls agree with a model: memory is charged while it has a handle or a mapping."""
    limited(GIB // 4)(f"""
random.seed({seed})
SPACE = 96
at = reserve(SPACE * BLOCK)
class Memory:
    def __init__(self, blocks):
        self.blocks, self.handles, self.places = blocks, 1, set()
    def alive(self):
        return self.handles or self.places
memories, by_handle, mapped = [], {{}}, {{}}
def alive():
    return sum(memory.blocks for memory in memories if memory.alive())
def any_of(table):
    return random.choice(list(table.items()))
for step in range(1500):
    match random.choice(("create", "map", "map", "unmap", "retain", "release", "release")):
        case "create":
            blocks = random.choice((1, 1, 2, 10, 40))
            code, handle = d.cuMemCreate(blocks * BLOCK, prop(), 0)
            fits = (alive() + blocks) * BLOCK <= GIB // 4 - before[0][1]
            assert (code == OK) == fits, (code, fits)
            if fits:
                by_handle[int(handle)] = Memory(blocks)
                memories.append(by_handle[int(handle)])
        case "map" if by_handle:
            handle, memory = any_of(by_handle)
            place = random.randrange(SPACE)
            end = place + memory.blocks
            room = end <= SPACE and all(p >= end or place >= p + m.blocks
                                        for p, m in mapped.items())
            room = room and memory.handles > 0
            code = d.cuMemMap(at + place * BLOCK, memory.blocks * BLOCK, 0, handle, 0)[0]
            assert (code == OK) == room, (code, room)
            if room:
                memory.places.add(place)
                mapped[place] = memory
        case "unmap" if mapped:
            place, memory = any_of(mapped)
            del mapped[place]
            memory.places.remove(place)
            unmap(at + place * BLOCK, memory.blocks * BLOCK)
        case "retain" if mapped:
            place, memory = any_of(mapped)
            inside = at + place * BLOCK + random.randrange(memory.blocks * BLOCK)
            by_handle[int(must(d.cuMemRetainAllocationHandle(inside)))] = memory
            memory.handles += 1
        case "release" if by_handle:
            handle, memory = any_of(by_handle)
            assert (d.cuMemRelease(handle)[0] == OK) == (memory.handles > 0)
            memory.handles -= memory.handles > 0
            if not memory.alive():
                del by_handle[handle]
    if step % 16 == 0:
        took(alive() * BLOCK)
took(alive() * BLOCK)
""")
