/*
 * Comparing strings without libc: a lookup may come while a sanitizer's runtime, which stands
 * before libc's strcmp, is itself still looking its functions up.
 */
#ifndef VGPU_TEXT_H
#define VGPU_TEXT_H

#include <stdbool.h>

/* Where `text` goes on behind `start`, or NULL where it starts otherwise. */
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

#endif
