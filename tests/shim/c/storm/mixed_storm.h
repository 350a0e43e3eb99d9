/* Shared by mixed_storm.c and the allocation paths of its threads. */
#pragma once

#include "abi/cuda_entry.h"

#include "../test.h"

#include <stdbool.h>

#define OK(call) MUST((call) == CUDA_SUCCESS)
/* True: done; false: refused for lack of memory, as any call may be at the limit. */
#define FITS(call) fits((call), __FILE__, __LINE__)

#define BLOCK ((size_t)2 << 20)

enum { PEER_HANDLES = 8 };

struct storm {
	uint64_t random;
	CUstream stream;
};

/* Something that was allocated, by whichever thread. */
struct thing {
	const struct path *path;
	uint64_t first, second;
	size_t bytes;
};

/* One way to allocate memory, and to free it. */
struct path {
	bool (*make)(struct storm *storm, struct thing *thing);
	void (*end)(struct storm *storm, const struct thing *thing);
};

extern const struct path paths[];
extern const unsigned int path_count;
extern CUipcMemHandle peer_handles[PEER_HANDLES];

/* Those of paths that are made elsewhere than in mixed_storm_paths.c, and of it for others. */
bool make_physical(struct storm *storm, struct thing *thing);
void end_physical(struct storm *storm, const struct thing *thing);
bool make_multicast(struct storm *storm, struct thing *thing);
void end_multicast(struct storm *storm, const struct thing *thing);
bool make_external(struct storm *storm, struct thing *thing);
void end_external(struct storm *storm, const struct thing *thing);
bool make_linear(struct storm *storm, struct thing *thing);
void end_linear(struct storm *storm, const struct thing *thing);
bool make_array(struct storm *storm, struct thing *thing);

/* Queries of all kinds, which change nothing. */
void look(void);

/* Contexts and code that are created and destroyed, with their memory. */
void live_briefly(struct storm *storm);

static inline bool fits(CUresult result, const char *file, int line)
{
	if (result != CUDA_SUCCESS && result != CUDA_ERROR_OUT_OF_MEMORY) {
		fprintf(stderr, "%s:%d: result %d\n", file, line, (int)result);
		exit(1);
	}
	return result == CUDA_SUCCESS;
}
