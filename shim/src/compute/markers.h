/*
 * Pairs of CUDA events that the library records around a program's launches. It reuses them.
 *
 * An event ends with its context. So each pair has the context's generation, and an event of an
 * ended context is never given to the driver. The library's own calls for events are made in
 * relaxed capture mode.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "vgpu/cuda_abi.h"

/* The number of a pair in use. 0: none. */
typedef uint64_t vgpu_event;

/* Stands for a pair that could not be recorded. */
#define VGPU_EVENT_LOST UINT64_MAX

/* Record a pair's first event in a stream of the current context, or of one of its green
 * contexts. */
vgpu_event vgpu_event_begin(CUstream stream);

/* Record the second event. Return the pair, or VGPU_EVENT_LOST. */
vgpu_event vgpu_event_end(vgpu_event event, CUstream stream);

/* True if the work between the events is done, or its context has ended. took_ns: the GPU's time
 * between them, or VGPU_UNTIMED. */
bool vgpu_event_is_reached(vgpu_event event, uint64_t *took_ns);

/* Make the pair available for another launch. */
void vgpu_event_release(vgpu_event event);
