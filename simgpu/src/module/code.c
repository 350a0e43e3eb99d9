/* See code.h. */
#define _GNU_SOURCE
#include "module/code.h"

#include <ctype.h>
#include <elf.h>
#include <stdlib.h>
#include <string.h>

enum { MACHINE_CUDA = 190, SYMBOL_IS_ENTRY = 0x10 /* in st_other */ };

static const struct code_entry unstated = {.duration_ns = CODE_UNSTATED,
					   .duration_argument = CODE_UNSTATED};

static bool add_entry(struct code *code, struct code_entry entry, const char *name, size_t length)
{
	unsigned int count = code->entry_count;

	/* At powers of two, so that a long list is seldom copied. */
	if (!(count & (count - 1))) {
		struct code_entry *grown =
		    realloc(code->entries, (count ? 2 * count : 1) * sizeof(*grown));

		if (!grown)
			return false;
		code->entries = grown;
	}
	entry.name = strndup(name, length);
	if (!entry.name)
		return false;
	code->entries[code->entry_count++] = entry;
	return true;
}

/* Compilers put the tables on odd addresses too. */
static Elf64_Shdr section(const char *image, const Elf64_Ehdr *head, unsigned int index)
{
	Elf64_Shdr row;

	memcpy(&row, image + head->e_shoff + index * sizeof(row), sizeof(row));
	return row;
}

static bool add_symbols(struct code *code, const char *image, const Elf64_Shdr *table,
			const char *names)
{
	for (uint64_t at = 0; at + sizeof(Elf64_Sym) <= table->sh_size; at += sizeof(Elf64_Sym)) {
		const char *name;
		Elf64_Sym symbol;

		memcpy(&symbol, image + table->sh_offset + at, sizeof(symbol));
		name = names + symbol.st_name;
		if (symbol.st_other & SYMBOL_IS_ENTRY &&
		    !add_entry(code, unstated, name, strlen(name)))
			return false;
	}
	return true;
}

/* Machine code (cubin): the names of its kernels, and the size of what is loaded. */
static enum code_result read_machine_code(const char *image, struct code *code)
{
	Elf64_Ehdr head;

	memcpy(&head, image, sizeof(head));
	if (head.e_machine != MACHINE_CUDA)
		return CODE_INVALID;
	for (unsigned int i = 0; i < head.e_shnum; i++) {
		Elf64_Shdr row = section(image, &head, i);

		if (row.sh_flags & SHF_ALLOC)
			code->bytes += row.sh_size;
		if (row.sh_type == SHT_SYMTAB &&
		    !add_symbols(code, image, &row,
				 image + section(image, &head, row.sh_link).sh_offset))
			return CODE_NO_MEMORY;
	}
	return CODE_OK;
}

static bool is_word(char c)
{
	return isalnum((unsigned char)c) || (c && strchr("_$.%", c));
}

static void read_comment(const char *at, struct code *code, struct code_entry *next)
{
	const struct {
		const char *key;
		uint64_t *value;
	} settings[] = {{" simgpu: duration_ns=", &next->duration_ns},
			{" simgpu: duration_argument=", &next->duration_argument},
			{" simgpu: local_bytes=", &next->local_bytes},
			{" simgpu: module_bytes=", &code->bytes}};

	for (size_t i = 0; i < sizeof(settings) / sizeof(*settings); i++) {
		size_t length = strlen(settings[i].key);

		if (strncmp(at, settings[i].key, length) == 0)
			*settings[i].value = strtoull(at + length, NULL, 10);
	}
}

/* The next word's length, whatever lies before it; 0 at the end of the text. */
static size_t next_word(const char **at, struct code *code, struct code_entry *next)
{
	size_t length = 0;

	while (**at && !is_word(**at)) {
		if (strncmp(*at, "//", 2) == 0) {
			read_comment(*at + 2, code, next);
			*at += strcspn(*at, "\n");
		} else if (strncmp(*at, "/*", 2) == 0) {
			const char *end = strstr(*at + 2, "*/");

			*at = end ? end + 2 : *at + strlen(*at);
		} else {
			++*at;
		}
	}
	while (is_word((*at)[length]))
		length++;
	return length;
}

/* PTX text: its entries, with what the comments before each state. */
static enum code_result read_text(const char *at, struct code *code)
{
	struct code_entry next = unstated;
	size_t length;

	code->bytes = CODE_UNSTATED;
	length = next_word(&at, code, &next);
	if (length != strlen(".version") || strncmp(at, ".version", length) != 0)
		return CODE_INVALID;
	while (length) {
		bool is_entry = length == strlen(".entry") && strncmp(at, ".entry", length) == 0;

		at += length;
		length = next_word(&at, code, &next);
		if (!is_entry || !length)
			continue;
		if (!add_entry(code, next, at, length))
			return CODE_NO_MEMORY;
		next = unstated;
	}
	return CODE_OK;
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
	result = memcmp(image, ELFMAG, SELFMAG) == 0 ? read_machine_code(image, code)
						     : read_text(image, code);
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
