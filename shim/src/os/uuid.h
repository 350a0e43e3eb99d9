/* Converts a GPU's UUID from text, in grants and in NVML's answers, to the 16 bytes that CUDA
 * returns. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/*
 * "GPU-" or "MIG-", then 32 hexadecimal digits, with dashes anywhere between. Reads at most
 * `capacity` characters. False, and `uuid` all zero, for any other text.
 */
bool vgpu_uuid_parse(const char *text, uint32_t capacity, uint8_t uuid[16]);
