/*
 * A libcuda.so.1 that returns a trace's results and values at once, so that a replay measures only
 * the time of gpuslice's library.
 *
 * replay.c writes `recorded_answer` before each call. Calls of its entry get the recorded result
 * and values. The library itself calls other entries, and gets the values of a GPU of 1 TiB with
 * one context, or CUDA_ERROR_NOT_SUPPORTED. One thread calls at a time.
 */
#include "script.h"

#include <string.h>

#pragma GCC visibility push(default)
extern struct recorded_answer recorded_answer;
const struct recorded_entry *recorded_entry(const char *name);
#pragma GCC visibility pop

enum { SUCCESS = 0, NOT_SUPPORTED = 801, NOT_FOUND = 500 };
#define GPU_BYTES (UINT64_C(1) << 40)
#define BLOCK	  (UINT64_C(2) << 20)

/* The values that the library's own calls of an entry get, for at most two arguments. */
struct constant {
	const char *symbol;
	struct {
		unsigned argument, bytes;
		uint64_t value;
	} out[2];
};

struct row {
	struct recorded_entry entry;
	const char *base;
	int since, is_per_thread;
	const struct constant *constant; /* NULL: not supported */
};

#define ROW(symbol, base, since, per_thread)                                                       \
	static struct row row_##symbol = {{#symbol, symbol}, #base, since, per_thread, NULL};
#include "rows.h"

static const struct constant constants[] = {
    {"cuInit", {{0}}},
    {"cuDriverGetVersion", {{0, 4, 13000}}},
    {"cuDeviceGet", {{0, 4, 0}}},
    {"cuDeviceGetCount", {{0, 4, 1}}},
    {"cuDeviceTotalMem_v2", {{0, 8, GPU_BYTES}}},
    {"cuDevicePrimaryCtxRetain", {{0, 8, 1}}},
    {"cuDevicePrimaryCtxRelease_v2", {{0}}},
    {"cuDevicePrimaryCtxGetState", {{1, 4, 0}, {2, 4, 1}}},
    {"cuCtxGetCurrent", {{0, 8, 1}}},
    {"cuCtxSetCurrent", {{0}}},
    {"cuCtxGetDevice", {{0, 4, 0}}},
    {"cuCtxGetDevice_v2", {{0, 4, 0}}},
    {"cuMemGetInfo_v2", {{0, 8, GPU_BYTES}, {1, 8, GPU_BYTES}}},
    {"cuMemGetAllocationGranularity", {{0, 8, BLOCK}}},
    {"cuDeviceGetDefaultMemPool", {{0, 8, 1}}},
    {"cuDeviceGetMemPool", {{0, 8, 1}}},
    {"cuMemPoolGetAttribute", {{2, 8, 0}}},
    {"cuMemPoolTrimTo", {{0}}},
    {"cuStreamIsCapturing", {{1, 4, 0}}},
};

struct recorded_answer recorded_answer;

/* Writes GPU-6e756c6c-0000-4000-8000-000000000000, the UUID of the null driver's GPU. */
static uint64_t uuid(void *out)
{
	static const unsigned char fixed[16] = {'n', 'u', 'l', 'l', 0, 0, 0x40, 0, 0x80};

	memcpy(out, fixed, sizeof(fixed));
	return SUCCESS;
}

static struct row *row_of(const char *symbol)
{
	for (size_t i = 0; i < ROWS; i++)
		if (strcmp(rows[i]->entry.name, symbol) == 0)
			return rows[i];
	return NULL;
}

__attribute__((constructor)) static void begin(void)
{
	for (size_t i = 0; i < sizeof(constants) / sizeof(*constants); i++)
		row_of(constants[i].symbol)->constant = &constants[i];
}

const struct recorded_entry *recorded_entry(const char *name)
{
	return &row_of(name)->entry;
}

static uint64_t find(const char *base, void **out, int version, uint64_t flags)
{
	const struct row *found = NULL;

	for (size_t i = 0; i < ROWS; i++) {
		const struct row *row = rows[i];

		if (row->since <= version && (!row->is_per_thread || flags & 2) &&
		    (!found || row->since >= found->since) && strcmp(row->base, base) == 0)
			found = row;
	}
	*out = NULL;
	if (!found)
		return NOT_FOUND;
	memcpy(out, &found->entry.function, sizeof(found->entry.function));
	return SUCCESS;
}

static void *pointer(uint64_t word)
{
	return (void *)(uintptr_t)word;
}

static __attribute__((noinline)) uint64_t own_call(const struct row *of, const uint64_t *words)
{
	if (strcmp(of->base, "cuGetProcAddress") == 0)
		return find(pointer(words[0]), pointer(words[1]), (int)words[2], words[3]);
	if (strcmp(of->base, "cuDeviceGetUuid") == 0)
		return uuid(pointer(words[0]));
	if (!of->constant)
		return NOT_SUPPORTED;
	for (int n = 0; n < 2; n++)
		if (of->constant->out[n].bytes && words[of->constant->out[n].argument])
			memcpy(pointer(words[of->constant->out[n].argument]),
			       &of->constant->out[n].value, of->constant->out[n].bytes);
	return SUCCESS;
}

static inline uint64_t answer(const struct row *of, const uint64_t *words)
{
	const struct script_operation *operation = recorded_answer.operation;
	const struct script_result *result = recorded_answer.results;

	if (recorded_answer.entry != &of->entry)
		return own_call(of, words);
	for (uint32_t n = 0; n < operation->writtens; n++, result++)
		memcpy(pointer(words[result->argument]), &result->recorded, result->bytes);
	return (uint64_t)operation->result;
}

#define EACH(symbol, base, since, per_thread)                                                      \
	uint64_t symbol(WORDS)                                                                     \
	{                                                                                          \
		return answer(&row_##symbol, (const uint64_t[]){WORD_LIST});                       \
	}
#include "abi/cuda.def"
