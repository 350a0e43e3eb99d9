/*
 * One generation of the driver, SIMGPU_GENERATION. UNSEEN_GENERATION is a future driver.
 * It adds what today's libraries do not know: a new name, and a new function for an old name.
 */
#include "abi/cuda_abi.h"
#include "entry/resolve.h"

#define UNSEEN_GENERATION 14000

const int sim_cuda_version = SIMGPU_GENERATION;

#pragma GCC visibility push(default)
CUresult cuUnseenName(int *answer);
CUresult cuMemAlloc_v3(CUdeviceptr *out, size_t bytes, uint64_t flags);
#pragma GCC visibility pop

CUresult cuUnseenName(int *answer)
{
	*answer = UNSEEN_GENERATION;
	return CUDA_SUCCESS;
}

/* A new function for an old name. It takes flags and refuses every call. */
CUresult cuMemAlloc_v3(CUdeviceptr *out, size_t bytes, uint64_t flags)
{
	(void)out, (void)bytes, (void)flags;
	return CUDA_ERROR_NOT_SUPPORTED;
}

#define LATER(symbol, base) {#base, (any_function)symbol, UNSEEN_GENERATION, false},
const struct row sim_later_rows[] = {LATER(cuUnseenName, cuUnseenName)
					 LATER(cuMemAlloc_v3, cuMemAlloc)};
const size_t sim_later_count = sizeof(sim_later_rows) / sizeof(*sim_later_rows);
