/*
 * For every entry of cuda.def, declares an exported function and defines a variable row_SYMBOL. The
 * including file declares `struct row` and the macro ROW(symbol, base, since, per_thread), which
 * defines the variable. `rows` has pointers to all of them. To define the functions, the including
 * file then defines EACH and includes cuda.def again.
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
