"""A region as the release before version 5 made it: 4096 slots.

Such a file stays with its container, and the library of that release, through an upgrade of the
agent.
"""

from __future__ import annotations

import binascii
import struct
from typing import Final

from gpuslice.contract import region_file

VERSION: Final = 4
SLOTS: Final = 4096


def earlier_region(gpu_count: int, grant_id: int) -> bytes:
    geometry = region_file.Geometry(gpu_count, SLOTS)
    header = bytearray(region_file.header(gpu_count, grant_id, 0))
    for field, format_, value in (
        ("version", "<I", VERSION),
        ("slot_count", "<I", SLOTS),
        ("file_bytes", "<Q", geometry.file_bytes),
    ):
        struct.pack_into(format_, header, region_file.HEADER.offset(field), value)
    checksum = binascii.crc32(header[: region_file.HEADER.offset("checksum")])
    struct.pack_into("<I", header, region_file.HEADER.offset("checksum"), checksum)
    return bytes(header).ljust(geometry.file_bytes, b"\0")
