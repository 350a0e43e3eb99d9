/*
 * String comparison without libc: a lookup may be made while a sanitizer's runtime, which
 * interposes libc's strcmp, still resolves its own functions.
 */
#pragma once

#include <stdbool.h>

/* The rest of `text` after `start`, or NULL if it does not begin with it. */
static inline const char *vgpu_text_after(const char *text, const char *start)
{
	for (; *start; text++, start++)
		if (*text != *start)
			return 0;
	return text;
}

static inline bool vgpu_text_same(const char *a, const char *b)
{
	const char *rest = vgpu_text_after(a, b);
	return rest && !*rest;
}
