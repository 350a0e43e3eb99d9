/*
 * cuGetProcAddress: which entry a base name means, for a CUDA version and a kind of stream 0.
 *
 * The table is both lists of names, so every exported symbol can be found, and none that is not.
 * A version later than the driver's own is an invalid value. A name that is not there, or not yet
 * at that version, is CUDA_ERROR_NOT_FOUND with the reason in the status: so drivers have answered,
 * where NVIDIA's text promises CUDA_SUCCESS and a NULL pointer.
 */
#include "cuda_entry.h"
#include "cuda_unsupported.h"

#include <stdbool.h>
#include <string.h>

typedef void (*any_function)(void);

struct row {
	const char *base;
	any_function function;
	int since;
	bool per_thread;
};

static const struct row rows[] = {
#define ENTRY(symbol, base, since, params)		{#base, (any_function)symbol, since, false},
#define OLDER(symbol, base, since, params, args, newer) {#base, (any_function)symbol, since, false},
#define PER_THREAD(symbol, base, since, params, args, suffix, twin_since)                          \
	{#base, (any_function)symbol, since, false},                                               \
	    {#base, (any_function)symbol##suffix, twin_since, true},
#include "cuda.def"
#define NAME(symbol, base, since)	     {#base, (any_function)symbol, since, false},
#define PER_THREAD_NAME(symbol, base, since) {#base, (any_function)symbol, since, true},
#define OTHER_BASE(symbol, base, since)	     {#base, (any_function)symbol, since, false},
#include "cuda_unsupported.def"
};

/* The latest meaning at that version; a thread's own stream wins where both exist. */
static const struct row *find(const char *base, int version, bool per_thread, bool *known)
{
	const struct row *found = NULL;

	*known = false;
	for (const struct row *row = rows; row < rows + sizeof(rows) / sizeof(*rows); row++) {
		if (strcmp(row->base, base) != 0)
			continue;
		*known = true;
		if (row->since > version || (row->per_thread && !per_thread))
			continue;
		if (!found || row->since > found->since ||
		    (row->since == found->since && row->per_thread))
			found = row;
	}
	return found;
}

CUresult cuGetProcAddress_v2(const char *base, void **function, int version, uint64_t flags,
			     int *status)
{
	const struct row *row;
	bool known;

	if (status)
		*status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
	if (!base || !function)
		return CUDA_ERROR_INVALID_VALUE;
	*function = NULL;
	if (version > SIM_CUDA_VERSION || flags > CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM)
		return CUDA_ERROR_INVALID_VALUE;
	row = find(base, version, flags == CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, &known);
	if (!row) {
		if (status && known)
			*status = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
		return CUDA_ERROR_NOT_FOUND;
	}
	memcpy(function, &row->function, sizeof(row->function));
	if (status)
		*status = CU_GET_PROC_ADDRESS_SUCCESS;
	return CUDA_SUCCESS;
}

CUresult cuGetProcAddress(const char *base, void **function, int version, uint64_t flags)
{
	return cuGetProcAddress_v2(base, function, version, flags, NULL);
}

/* The tables are private to NVIDIA's own libraries; there are none here. */
CUresult cuGetExportTable(const void **table, const CUuuid *id)
{
	if (!table || !id)
		return CUDA_ERROR_INVALID_VALUE;
	*table = NULL;
	return CUDA_ERROR_NOT_FOUND;
}
