/*
 * Amounts as HAMi-core's environment variables have them: a whole decimal number, in memory limits
 * with at most one of k, m, g behind it, of either case, 1024-based.
 *
 * Absent, value and invalid are three different results, and nothing malformed is a value: HAMi's
 * own parser makes one byte of "1GB" and no limit of "-1".
 */
#ifndef VGPU_QUANTITY_ENV_H
#define VGPU_QUANTITY_ENV_H

#include <stdint.h>

enum vgpu_quantity { VGPU_QUANTITY_ABSENT, VGPU_QUANTITY_VALUE, VGPU_QUANTITY_INVALID };

/* `text` may be NULL: absent. Nothing is written but a value; none is above 2^63 - 1. */
enum vgpu_quantity vgpu_quantity_bytes(const char *text, uint64_t *bytes);

/* 0 to 100. */
enum vgpu_quantity vgpu_quantity_percent(const char *text, uint32_t *percent);

#endif
