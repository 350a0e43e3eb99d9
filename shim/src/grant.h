/*
 * The grant as this process last saw it valid: limits that the agent may change at any time.
 *
 * The hot path compares the two sequence numbers of the read-only mapping with those it knows, and
 * verifies a copy only after one has changed. A grant that turns invalid, or becomes another one,
 * while we run leaves the last known good in force. Shared with fork children; read by slots of no
 * kind.
 */
#ifndef VGPU_GRANT_H
#define VGPU_GRANT_H

#include <stdint.h>

#include "vgpu/region.h"

/* Map and verify the grant at `path`, once per process. */
enum vgpu_result vgpu_grant_load(const char *path, int *os_errno);

/*
 * In place of a file, limits from the environment: room for so many cards, which are added as they
 * are met. Once per process; vgpu_grant_load then has nothing to do.
 */
void vgpu_grant_assume(uint64_t id, int card_count);
void vgpu_grant_add(int card, const uint8_t uuid[16], uint64_t limit_bytes, uint32_t core_percent);

/* After vgpu_grant_load returned VGPU_OK, or vgpu_grant_assume. */
int vgpu_grant_card_count(void);
uint64_t vgpu_grant_id(void);
int vgpu_grant_find(const uint8_t uuid[16]);
uint64_t vgpu_grant_limit_bytes(int card);
uint32_t vgpu_grant_core_percent(int card);
uint64_t vgpu_grant_context_bytes(int card);

#endif
