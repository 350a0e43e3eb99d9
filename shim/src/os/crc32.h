/* CRC-32 (IEEE 802.3), as Python's binascii.crc32; protects the grant's copies and the region's
 * header. */
#pragma once

#include <stddef.h>
#include <stdint.h>

uint32_t vgpu_crc32(const void *data, size_t bytes);
