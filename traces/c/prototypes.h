/* The entries of cuda.def, which the including library defines and exports. */
#ifndef TRACES_PROTOTYPES_H
#define TRACES_PROTOTYPES_H

#include "entries.h"

#pragma GCC visibility push(default)
#define ENTRY(symbol, base, since, params)		uint64_t symbol(WORDS);
#define OLDER(symbol, base, since, params, args, newer) ENTRY(symbol, base, since, params)
#define PER_THREAD(symbol, base, since, params, args, suffix, twin_since)                          \
	ENTRY(symbol, base, since, params)                                                         \
	ENTRY(symbol##suffix, base, since, params)
#include "abi/cuda.def"
#undef ENTRY
#undef PER_THREAD
#pragma GCC visibility pop

#endif
