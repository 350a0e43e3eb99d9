/*
 * The work of cuda-load on GPU 0: kernels of a known duration, graphs of them, and copies.
 *
 * A kernel computes in a loop and writes the result, so that no compiler removes the loop. On a
 * real GPU the loops of a nanosecond are measured at the start. A simulated GPU takes the duration
 * from the kernel's second parameter. Errors of the driver end the program.
 */
#ifndef SIMGPU_LOAD_WORK_H
#define SIMGPU_LOAD_WORK_H

#include <stdbool.h>
#include <stdint.h>

#include "abi/cuda_entry.h"

enum { MOST_STREAMS = 16, MOST_KINDS = 256, GRAPH_KERNELS = 20 };

struct work_options {
	const char *mode;
	uint64_t from_ns, to_ns; /* durations of the first and the last kind */
	int kinds, streams;
	unsigned int blocks;
	const char *beside; /* NULL: none; "copy"; or the duration of kernels in us */
};

/* Finds the driver, makes a context, measures the GPU's speed, and makes the streams. */
void work_prepare(const struct work_options *options);
/* Returns the mean duration of a launch. */
uint64_t work_launch_ns(void);

/* Submits launch `number` to its stream, and returns the stream. */
CUstream work_launch(uint64_t number);
/* Waits for all streams of launches. */
void work_wait(void);
/* Keeps two copies or kernels in flight on a stream of their own, if options->beside. */
void work_beside(void);
uint64_t work_beside_count(void);

/* Returns a function of the driver. */
void *work_find(const char *name);
CUevent work_event(void);
void work_record(CUevent event, CUstream stream);
/* Returns whether the event's work is done; with `wait`, waits until it is. */
bool work_is_done(CUevent event, bool wait);

#endif
