/*
 * Events of the driver that the library records behind a program's launches, and reuses.
 *
 * An event belongs to a context and ends with it, so each carries the context's generation: one of
 * an ended context is never given to the driver. Own calls are made in relaxed capture mode.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "vgpu/cuda_abi.h"

/* An event in use; 0: none. */
typedef uint64_t vgpu_event;

/* One that could not be recorded. */
#define VGPU_EVENT_LOST UINT64_MAX

/* Record an event in the stream of the current context. */
vgpu_event vgpu_event_record(CUstream stream);

/* True if the work before it is done, or its context has ended. */
bool vgpu_event_is_reached(vgpu_event event);

/* It may be used again. */
void vgpu_event_release(vgpu_event event);
