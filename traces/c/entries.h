/*
 * Every entry of cuda.def as a function of words, for libraries that replace the driver.
 *
 * A caller passes integers and pointers alone, each in a register or a word of the stack, so one
 * prototype fits every entry: words beyond an entry's own parameters are arbitrary.
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
