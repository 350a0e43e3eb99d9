/* CRC-32 (IEEE 802.3), like Python's binascii.crc32: for grants, leases and region headers. */
#pragma once

#include <stddef.h>
#include <stdint.h>

uint32_t vgpu_crc32(const void *data, size_t bytes);
