#include "os/uuid.h"

#include <string.h>

#include "os/text.h"

#define PREFIX_CHARS 4
#define DIGITS	     32

bool vgpu_uuid_parse(const char *text, uint32_t capacity, uint8_t uuid[16])
{
	uint32_t length = (uint32_t)strnlen(text, capacity), at = PREFIX_CHARS;
	int digits = 0;

	memset(uuid, 0, 16);
	for (; at < length && digits < DIGITS; at++) {
		int value = vgpu_text_digit(text[at]);

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
