/* Shared by mixed_storm.c and the allocation paths of its threads. */
#pragma once

#include "abi/cuda_entry.h"

#include "../test.h"

#include <stdbool.h>

#define OK(call) MUST((call) == CUDA_SUCCESS)
/* True if the call succeeded. False if it returned out of memory, as it may at the limit. */
#define FITS(call) fits((call), __FILE__, __LINE__)

enum { PEER_HANDLES = 8 };

/* An allocation of any thread. */
struct thing {
	const struct path *path;
	CUdeviceptr address;
	union {
		CUmemoryPool pool;
		CUgraphExec graph;
		CUarray array;
		CUmipmappedArray mipmap;
		CUexternalMemory import;
		CUmemGenericAllocationHandle multicast;
	};
	size_t bytes;
};

/* One way to allocate memory, and to free it. */
struct path {
	bool (*make)(struct thing *thing);
	void (*end)(const struct thing *thing);
};

extern const struct path paths[];
extern const unsigned int path_count;
extern CUipcMemHandle peer_handles[PEER_HANDLES];

/* Functions of paths that mixed_storm_contexts.c uses too. */
bool make_linear(struct thing *thing);
void end_linear(const struct thing *thing);
bool make_array(struct thing *thing);

/* Make queries of all kinds. They must not change the charge. */
void look(void);

/* Create and destroy contexts and code, with their memory. */
void live_briefly(void);

/* Each thread has its own. */
extern __thread uint64_t random_state;
extern __thread CUstream stream;

static inline uint64_t below(uint64_t end)
{
	return next_random(&random_state) % end;
}

static inline bool fits(CUresult result, const char *file, int line)
{
	if (result != CUDA_SUCCESS && result != CUDA_ERROR_OUT_OF_MEMORY) {
		fprintf(stderr, "%s:%d: result %d\n", file, line, (int)result);
		exit(1);
	}
	return result == CUDA_SUCCESS;
}
