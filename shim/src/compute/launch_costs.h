/*
 * What launches cost: the GPU time of each kind of launch, learned from samples. The process has
 * one table, which is read and written without a lock.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* The samples in a row that were far above the cost of their kind. */
struct vgpu_high_samples {
	uint32_t count;
	uint16_t kind;
};

/* A number for the kind of a launch. Launches of one function or executable graph, or copies of one
 * size, are of one kind: they cost about the same. */
uint16_t vgpu_cost_kind(uint64_t handle, uint64_t size);

/* Identifies the kind. Another kind can get the number of one that was not used for long. */
uint32_t vgpu_cost_tag(uint16_t kind);

/* The cost of a kind. 0: it still needs samples, so its launches must be checked. */
uint32_t vgpu_cost_known_ns(uint16_t kind);

/* The same, from the samples so far, or an assumed cost without any. */
uint32_t vgpu_cost_assumed_ns(uint16_t kind);

/* Whether there is no sample yet. */
bool vgpu_cost_is_unknown(uint16_t kind);

/* A launch took `took_ns`. alone: no other container ran. A neighbour's time slice can only
 * lengthen a launch. So beside others the cost only falls, unless several samples in a row are far
 * higher: then the launches have other arguments, and the samples begin anew. */
void vgpu_cost_learn(struct vgpu_high_samples *samples, uint16_t kind, uint32_t tag,
		     uint64_t took_ns, bool alone);

/* No more samples will come, so the assumed cost counts as known. */
void vgpu_cost_assume(uint16_t kind, uint32_t tag);
