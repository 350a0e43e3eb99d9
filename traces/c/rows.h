/* All rows: one `struct row row_SYMBOL` for each entry, which the including file has defined. */
static struct row *const rows[] = {
#define ENTRY(symbol, base, since, params) &row_##symbol,
#define PER_THREAD(symbol, base, since, params, args, suffix, twin_since)                          \
	&row_##symbol, &row_##symbol##suffix,
#include "abi/cuda.def"
#undef ENTRY
#undef PER_THREAD
};
enum { ROWS = sizeof(rows) / sizeof(*rows) };
