/* See quantity_env.h. */
#include "quantity_env.h"

#include <stddef.h>

/* The digits that `*text` begins with; false where there are none, or too large a number. */
static int read_number(const char **text, uint64_t *number)
{
	const char *at = *text;

	for (*number = 0; *at >= '0' && *at <= '9'; at++) {
		uint64_t digit = (uint64_t)(*at - '0');

		if (*number > (INT64_MAX - digit) / 10)
			return 0;
		*number = *number * 10 + digit;
	}
	if (at == *text)
		return 0;
	*text = at;
	return 1;
}

static unsigned int shift_of(char unit)
{
	switch (unit) {
	case 'k':
	case 'K':
		return 10;
	case 'm':
	case 'M':
		return 20;
	case 'g':
	case 'G':
		return 30;
	default:
		return 0;
	}
}

enum vgpu_quantity vgpu_quantity_bytes(const char *text, uint64_t *bytes)
{
	unsigned int shift;
	uint64_t number;

	if (!text)
		return VGPU_QUANTITY_ABSENT;
	if (!read_number(&text, &number))
		return VGPU_QUANTITY_INVALID;
	shift = shift_of(*text);
	if (text[shift ? 1 : 0] || number > (uint64_t)INT64_MAX >> shift)
		return VGPU_QUANTITY_INVALID;
	*bytes = number << shift;
	return VGPU_QUANTITY_VALUE;
}

enum vgpu_quantity vgpu_quantity_percent(const char *text, uint32_t *percent)
{
	uint64_t number;

	if (!text)
		return VGPU_QUANTITY_ABSENT;
	if (!read_number(&text, &number) || *text || number > 100)
		return VGPU_QUANTITY_INVALID;
	*percent = (uint32_t)number;
	return VGPU_QUANTITY_VALUE;
}
