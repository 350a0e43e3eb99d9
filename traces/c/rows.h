/*
 * Every entry of cuda.def: its prototype, exported; a `struct row row_SYMBOL`, which the including
 * file has declared and defines by ROW(symbol, base, since, per_thread); and `rows`, all of them.
 * The file defines EACH as its functions, and includes cuda.def again.
 */
#include "entries.h"

#define ENTRY(symbol, base, since, params)		EACH(symbol, base, since, 0)
#define OLDER(symbol, base, since, params, args, newer) EACH(symbol, base, since, 0)
#define PER_THREAD(symbol, base, since, params, args, suffix, twin_since)                          \
	EACH(symbol, base, since, 0)                                                               \
	EACH(symbol##suffix, base, twin_since, 1)

#pragma GCC visibility push(default)
#define EACH(symbol, base, since, per_thread) uint64_t symbol(WORDS);
#include "abi/cuda.def"
#pragma GCC visibility pop
#undef EACH

#define EACH(symbol, base, since, per_thread) ROW(symbol, base, since, per_thread)
#include "abi/cuda.def"
#undef EACH

static struct row *const rows[] = {
#define EACH(symbol, base, since, per_thread) &row_##symbol,
#include "abi/cuda.def"
#undef EACH
};
enum { ROWS = sizeof(rows) / sizeof(*rows) };
