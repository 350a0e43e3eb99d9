/*
 * Those who take a chunk of a card without reserving it: far below the limit two changes of the
 * counter would be most of what a small stream-ordered allocation costs.
 *
 * Each has one of a few words of the region while it does, and looks at the counter only then; who
 * reserves near the limit changes the counter first, and then counts these words as chunks. So of
 * two that are at it together one sees the other, and what is charged and what may be taken never
 * pass the limit together. A word of a slot's former owner counts for nothing.
 */
#ifndef VGPU_TAKERS_H
#define VGPU_TAKERS_H

#include "counter.h"
#include "vgpu/region.h"

enum { VGPU_TAKERS = 3 }; /* as many as the card's record has room for */

/* What they may take together at most, and now. */
#define VGPU_MOST_TAKEN_BYTES (VGPU_TAKERS * VGPU_CHUNK_BYTES)
uint64_t vgpu_taken_bytes(const struct vgpu_view *view, int card);

#endif
