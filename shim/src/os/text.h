/* String functions without libc, for lookups of names. A sanitizer's runtime interposes libc's
 * strcmp, and may make such a lookup before its strcmp works. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* The rest of `text` behind `start`. NULL: `text` does not begin with `start`. */
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

/* The value of a hexadecimal digit of either case, or -1. */
static inline int vgpu_text_digit(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	c |= 'a' ^ 'A';
	return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Read the number at `*text`, in base 10 or 16, and advance `*text` past it. False: there is no
 * number, or it is above `most`. strtoull is not used, because newer headers bind it to a symbol
 * that older C libraries lack. */
static inline bool vgpu_text_number(const char **text, int base, uint64_t most, uint64_t *number)
{
	const char *at = *text;
	int digit;

	for (*number = 0; (digit = vgpu_text_digit(*at)) >= 0 && digit < base; at++) {
		if (*number > (most - (uint64_t)digit) / (uint64_t)base)
			return false;
		*number = *number * (uint64_t)base + (uint64_t)digit;
	}
	if (at == *text)
		return false;
	*text = at;
	return true;
}
