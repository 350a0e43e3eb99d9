/*
 * Strings without libc: a lookup may be made while a sanitizer's runtime, which
 * interposes libc's strcmp, still resolves its own functions.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

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

/* The value of a hexadecimal digit of either case, or -1. */
static inline int vgpu_text_digit(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	c |= 'a' ^ 'A';
	return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* The number that `*text` begins with, in base 10 or 16, which advances past it. False if there is
 * none, or it is above `most`. Not strtoull: newer headers bind it to a symbol that older C
 * libraries lack. */
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
