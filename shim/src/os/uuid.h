/* Converts a GPU's UUID from the text in grants and in NVML to the 16 bytes that CUDA returns. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Convert "GPU-" or "MIG-" and 32 hexadecimal digits, with dashes anywhere between. At most
 * `capacity` characters are read. For any other text return false, and set `uuid` to zeros. */
bool vgpu_uuid_parse(const char *text, uint32_t capacity, uint8_t uuid[16]);
