/* cuGetProcAddress of the null driver: a table of all its entries. */
#include "null/null_driver.h"

#include <string.h>

static const struct {
	const char *base;
	int since;
	uint64_t stream; /* the cuGetProcAddress flag for it; 0: any flag without a row */
	void (*function)(void);
} rows[] = {
#define NULL_ROW(symbol, base, since, params) {#base, since, 0, (void (*)(void))symbol},
    NULL_ENTRIES(NULL_ROW)
#undef NULL_ROW
#define NULL_ROW(symbol, suffix, since, params)                                                    \
	{#symbol, since, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM,                            \
	 (void (*)(void))symbol##suffix},
	NULL_TWINS(NULL_ROW) NULL_POOL_TWINS(NULL_ROW)
#undef NULL_ROW
};

CUresult cuGetProcAddress_v2(const char *base, void **function, int version, uint64_t flags,
			     int *status)
{
	int latest = 0;
	bool known = false;

	*function = NULL;
	for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
		if (strcmp(rows[i].base, base) != 0)
			continue;
		known = true;
		if (rows[i].since > version || rows[i].since < latest ||
		    (rows[i].stream && rows[i].stream != flags))
			continue;
		latest = rows[i].since;
		memcpy(function, &rows[i].function, sizeof(rows[i].function));
	}
	if (status)
		*status = *function ? CU_GET_PROC_ADDRESS_SUCCESS
			  : known   ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
				    : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
	return *function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult cuGetProcAddress(const char *base, void **function, int version, uint64_t flags)
{
	return cuGetProcAddress_v2(base, function, version, flags, NULL);
}
