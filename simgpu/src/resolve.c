/*
 * cuGetProcAddress: which entry a base name means, for a CUDA version and a kind of stream 0.
 *
 * The table is both lists of names, so every exported symbol can be found, and none that is not.
 * A version later than the driver's own is an invalid value. A name that is not there, or not yet
 * at that version, is CUDA_ERROR_NOT_FOUND with the reason in the status: so drivers have answered,
 * where NVIDIA's text promises CUDA_SUCCESS and a NULL pointer.
 */
#include "resolve.h"
#include "cuda_entry.h"
#include "cuda_export.h"
#include "cuda_unsupported.h"

#include <stdlib.h>
#include <string.h>

/*
 * Drivers may answer with an inner function where they export another: asked to by
 * SIMGPU_INNER_ENTRIES=1, this one does, for every name.
 */
#if defined(__x86_64__)
#define JUMP "jmp "
#elif defined(__aarch64__)
#define JUMP "b "
#endif
#define INNER(symbol)                                                                              \
	void inner_##symbol(void);                                                                 \
	__asm__(".text\n.type inner_" #symbol ", @function\ninner_" #symbol ":\n\t" JUMP #symbol   \
		"\n");

#define ENTRY(symbol, base, since, params)		INNER(symbol)
#define OLDER(symbol, base, since, params, args, newer) INNER(symbol)
#define PER_THREAD(symbol, base, since, params, args, suffix, twin_since)                          \
	INNER(symbol) INNER(symbol##suffix)
#include "cuda.def"
#undef ENTRY
#undef OLDER
#undef PER_THREAD
#define NAME(symbol, base, since)	     INNER(symbol)
#define PER_THREAD_NAME(symbol, base, since) INNER(symbol)
#define OTHER_BASE(symbol, base, since)
#include "cuda_unsupported.def"
#undef NAME
#undef PER_THREAD_NAME
#undef OTHER_BASE

#define ROW(symbol, linked, base, since, per_thread)                                               \
	{#base, (any_function)linked, inner_##symbol, since, per_thread},
static const struct row rows[] = {
#define ENTRY(symbol, base, since, params)		ROW(symbol, exported_##symbol, base, since, false)
#define OLDER(symbol, base, since, params, args, newer) ENTRY(symbol, base, since, params)
#define PER_THREAD(symbol, base, since, params, args, suffix, twin_since)                          \
	ENTRY(symbol, base, since, params)                                                         \
	ROW(symbol##suffix, exported_##symbol##suffix, base, twin_since, true)
#include "cuda.def"
#define NAME(symbol, base, since)	     ROW(symbol, symbol, base, since, false)
#define PER_THREAD_NAME(symbol, base, since) ROW(symbol, symbol, base, since, true)
/* A second meaning of what is exported anyway; of cuda.def alone. */
#define OTHER_BASE(symbol, base, since) ROW(symbol, exported_##symbol, base, since, false)
#include "cuda_unsupported.def"
};

/* The latest meaning at that version; a thread's own stream wins where both exist. */
static const struct row *later(const struct row *found, const struct row *row)
{
	if (!found || row->since > found->since || (row->since == found->since && row->per_thread))
		return row;
	return found;
}

static const struct row *find(const char *base, int version, bool per_thread, bool *known)
{
	const struct row *found = NULL;
	const size_t own = sizeof(rows) / sizeof(*rows);

	*known = false;
	for (size_t i = 0; i < own + sim_later_count; i++) {
		const struct row *row = i < own ? &rows[i] : &sim_later_rows[i - own];
		if (row->since > sim_cuda_version || strcmp(row->base, base) != 0)
			continue;
		*known = true;
		if (row->since <= version && (per_thread || !row->per_thread))
			found = later(found, row);
	}
	return found;
}

static any_function answer(const struct row *row)
{
	const char *inner = getenv("SIMGPU_INNER_ENTRIES");

	return inner && strcmp(inner, "1") == 0 ? row->inner : row->function;
}

CUresult cuGetProcAddress_v2(const char *base, void **function, int version, uint64_t flags,
			     int *status)
{
	const struct row *row;
	any_function found;
	bool known;

	if (status)
		*status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
	if (!base || !function)
		return CUDA_ERROR_INVALID_VALUE;
	*function = NULL;
	if (version > sim_cuda_version || flags > CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM)
		return CUDA_ERROR_INVALID_VALUE;
	row = find(base, version, flags == CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, &known);
	if (!row) {
		if (status && known)
			*status = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
		return CUDA_ERROR_NOT_FOUND;
	}
	found = answer(row);
	memcpy(function, &found, sizeof(found));
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
