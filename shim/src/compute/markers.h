/*
 * CUDA events that the library records after a program's launches. It reuses them.
 *
 * An event ends with its context. So each entry has the context's generation, and an event of an
 * ended context is never given to the driver. The library's own calls for events are made in
 * relaxed capture mode.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "vgpu/cuda_abi.h"

/* The number of an event in use. 0: no event. */
typedef uint64_t vgpu_event;

/* Stands for an event that could not be recorded. */
#define VGPU_EVENT_LOST UINT64_MAX

/* Record an event in a stream of the current context, or of one of its green contexts. */
vgpu_event vgpu_event_record(CUstream stream);

/* True if the work before the event is done, or its context has ended. */
bool vgpu_event_is_reached(vgpu_event event);

/* Make the event available for another launch. */
void vgpu_event_release(vgpu_event event);
