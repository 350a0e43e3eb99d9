/*
 * Declarations for the recorder's two files: a line of a trace, and functions that add to it.
 */
#ifndef TRACES_RECORD_H
#define TRACES_RECORD_H

#include <stddef.h>
#include <stdint.h>

enum { LINE_BYTES = 16384 };

struct text {
	char bytes[LINE_BYTES];
	size_t length;
};

/* Appends to the text. What does not fit into LINE_BYTES is left out. */
__attribute__((format(printf, 2, 3))) void add(struct text *text, const char *format, ...);

/* Add the arguments before the call, and after it the values that the driver wrote. */
void add_arguments(struct text *text, const char *tokens, const uint64_t *words);
void add_written(struct text *text, const char *tokens, const uint64_t *words);

#endif
