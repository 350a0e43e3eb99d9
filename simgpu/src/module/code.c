/* See code.h. */
#define _GNU_SOURCE
#include "module/code.h"

#include <elf.h>
#include <stdlib.h>
#include <string.h>

/* Space for one more than `count`; at powers of two, so that a long list is seldom copied. */
static void *grow(void *rows, unsigned int count, size_t bytes)
{
	if (count & (count - 1) || count == 1)
		return rows;
	return realloc(rows, bytes * (count ? count * 2 : 2));
}

bool code_entry_add(struct code *code, struct code_entry entry, const char *name, size_t length)
{
	struct code_entry *rows = grow(code->entries, code->entry_count, sizeof(*rows));

	if (!rows)
		return false;
	code->entries = rows;
	entry.name = strndup(name, length);
	if (!entry.name)
		return false;
	rows[code->entry_count++] = entry;
	return true;
}

int code_entry_find(const struct code *code, const char *name)
{
	for (unsigned int i = 0; i < code->entry_count; i++)
		if (strcmp(code->entries[i].name, name) == 0)
			return (int)i;
	return -1;
}

enum code_result code_read(const void *image, struct code **out)
{
	struct code *code = calloc(1, sizeof(*code));
	enum code_result result;

	if (!code)
		return CODE_NO_MEMORY;
	code->references = 1;
	result =
	    memcmp(image, ELFMAG, SELFMAG) == 0 ? cubin_read(image, code) : text_read(image, code);
	if (result == CODE_OK)
		*out = code;
	else
		code_release(code);
	return result;
}

void code_release(struct code *code)
{
	if (--code->references)
		return;
	for (unsigned int i = 0; i < code->entry_count; i++)
		free(code->entries[i].name);
	free(code->entries);
	free(code);
}
