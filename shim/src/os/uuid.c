/* See uuid.h. */
#include "os/uuid.h"

#include <string.h>

#define PREFIX_CHARS 4
#define DIGITS	     32

static int digit_of(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if (c >= 'a' && c <= 'f')
		return c - 'a' + 10;
	if (c >= 'A' && c <= 'F')
		return c - 'A' + 10;
	return -1;
}

bool vgpu_uuid_parse(const char *text, uint32_t capacity, uint8_t uuid[16])
{
	uint32_t length = (uint32_t)strnlen(text, capacity), at = PREFIX_CHARS;
	int digits = 0;

	memset(uuid, 0, 16);
	for (; at < length && digits < DIGITS; at++) {
		int value = digit_of(text[at]);

		if (value < 0 && text[at] != '-')
			break;
		if (value >= 0) {
			uuid[digits / 2] = (uint8_t)(uuid[digits / 2] << 4 | value);
			digits++;
		}
	}
	if (digits == DIGITS && at == length)
		return true;
	memset(uuid, 0, 16);
	return false;
}
