/*
 * cuGetProcAddress: which entry a base name means, for a CUDA version and a kind of stream 0.
 *
 * The table contains both lists of names, and so all exported functions. A version that is later
 * than the driver's gets the newest entry. If a name does not exist, or not in that version, the
 * result is CUDA_SUCCESS, a NULL pointer and the reason in the status. The function before CUDA 12
 * has no status: it returns CUDA_ERROR_NOT_FOUND and does not set the pointer. With the flag for
 * per-thread streams, a name with a per-thread twin means only the twin.
 */
#include "entry/resolve.h"
#include "abi/cuda_entry.h"
#include "abi/cuda_export.h"
#include "base/driver.h"

#include <string.h>

#define ROW(linked, base, since, per_thread) {#base, (any_function)linked, since, per_thread},
static const struct row rows[] = {
#define ENTRY(symbol, base, since, params)		ROW(exported_##symbol, base, since, false)
#define OLDER(symbol, base, since, params, args, newer) ENTRY(symbol, base, since, params)
#define PER_THREAD(symbol, base, since, params, args, suffix, twin_since)                          \
	ENTRY(symbol, base, since, params)                                                         \
	ROW(exported_##symbol##suffix, base, twin_since, true)
#include "abi/cuda.def"
#define NAME(symbol, base, since) ROW(symbol, base, since, false)
#define PER_THREAD_NAME(symbol, base, since, suffix, twin_since)                                   \
	NAME(symbol, base, since) ROW(symbol##suffix, base, twin_since, true)
#include "abi/cuda_unsupported.def"
};

/*
 * Returns the latest row for that version and that kind of stream 0. The kind does not matter for
 * a name without a per-thread row.
 */
static const struct row *find(const char *base, int version, bool per_thread, bool *known)
{
	const struct row *found = NULL;
	const size_t own = sizeof(rows) / sizeof(*rows);
	bool twins = false;

	*known = false;
	for (size_t i = 0; i < own + sim_later_count; i++) {
		const struct row *row = i < own ? &rows[i] : &sim_later_rows[i - own];

		if (row->since > sim_cuda_version || strcmp(row->base, base) != 0 ||
		    (row->per_thread && !per_thread))
			continue;
		*known = true;
		if (row->per_thread && !twins) {
			twins = true;
			found = NULL;
		}
		if (row->since <= version && row->per_thread == twins &&
		    (!found || row->since > found->since))
			found = row;
	}
	return found;
}

static CUresult look_up(const char *base, int version, uint64_t flags, any_function *function,
			int *status)
{
	const struct row *row;
	bool known;

	if (flags >
	    (CU_GET_PROC_ADDRESS_LEGACY_STREAM | CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM))
		return CUDA_ERROR_INVALID_VALUE;
	row = find(base, version, flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, &known);
	*status = row	  ? CU_GET_PROC_ADDRESS_SUCCESS
		  : known ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
			  : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
	*function = row ? row->function : NULL;
	return CUDA_SUCCESS;
}

CUresult cuGetProcAddress_v2(const char *base, void **function, int version, uint64_t flags,
			     int *status)
{
	any_function found;
	int reason;

	TRY(base && function ? look_up(base, version, flags, &found, &reason)
			     : CUDA_ERROR_INVALID_VALUE);
	memcpy(function, &found, sizeof(found));
	if (status)
		*status = reason;
	return CUDA_SUCCESS;
}

CUresult cuGetProcAddress(const char *base, void **function, int version, uint64_t flags)
{
	void *found = NULL;

	TRY(cuGetProcAddress_v2(base, function ? &found : NULL, version, flags, NULL));
	if (!found)
		return CUDA_ERROR_NOT_FOUND;
	*function = found;
	return CUDA_SUCCESS;
}

/* Export tables are private to NVIDIA's own libraries. Here every id is unknown. */
CUresult cuGetExportTable(const void **table, const CUuuid *id)
{
	if (table && id)
		*table = NULL;
	return CUDA_ERROR_INVALID_VALUE;
}
