/*
 * One prototype for every entry of cuda.def, for libraries that replace the driver.
 *
 * It fits every entry, because callers pass only integers and pointers, each in a register or in a
 * word of the stack. If an entry has fewer parameters, the remaining words are arbitrary.
 */
#ifndef TRACES_ENTRIES_H
#define TRACES_ENTRIES_H

#include <stdint.h>

#define WORDS                                                                                      \
	uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e, uint64_t f, uint64_t g,        \
	    uint64_t h, uint64_t i, uint64_t j, uint64_t k
#define WORD_LIST a, b, c, d, e, f, g, h, i, j, k

enum { WORD_COUNT = 11 };

typedef uint64_t word_function(WORDS);

#endif
