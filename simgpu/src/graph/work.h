/* The work that a stream does, or that a node of a graph records. */
#ifndef SIMGPU_WORK_H
#define SIMGPU_WORK_H

#include "base/driver.h"

struct work {
	CUfunction
	    function; /* a function or a kernel, whose code is loaded; NULL: a copy or a fill */
	uint64_t duration_ns; /* CODE_UNSTATED: the default of a launch */
};

/*
 * Submits the work, or records it in a node of that type if the stream captures. Called without the
 * lock; waits while the context's channel is full.
 */
CUresult work_submit(const struct work *work, int node_type, CUstream stream);

#endif
