/*
 * What differs between generations of the driver: the newest supported CUDA version, and which
 * names the driver exports (generation.cmake) and finds.
 */
#ifndef SIMGPU_RESOLVE_H
#define SIMGPU_RESOLVE_H

#include <stdbool.h>
#include <stddef.h>

typedef void (*any_function)(void);

struct row {
	const char *base;
	any_function function;
	int since;
	bool per_thread;
};

extern const int sim_cuda_version;
extern const struct row sim_later_rows[];
extern const size_t sim_later_count;

#endif
