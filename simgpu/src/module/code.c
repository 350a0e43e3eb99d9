/* See code.h. */
#define _GNU_SOURCE
#include "module/code.h"

#include <ctype.h>
#include <elf.h>
#include <string.h>

#include "base/driver.h"

enum { MACHINE_CUDA = 190, SYMBOL_IS_ENTRY = 0x10 /* in st_other */ };

static const struct code_entry unstated = {.duration_ns = CODE_UNSTATED,
					   .duration_argument = CODE_UNSTATED};

static void add_entry(struct code *code, struct code_entry entry, const char *name, size_t length)
{
	code->entries = grow(code->entries, code->entry_count, sizeof(*code->entries));
	entry.name = must(strndup(name, length));
	code->entries[code->entry_count++] = entry;
}

/* Returns a copy, because the section table in the image may be unaligned. */
static Elf64_Shdr section(const char *image, const Elf64_Ehdr *head, unsigned int index)
{
	Elf64_Shdr row;

	memcpy(&row, image + head->e_shoff + index * sizeof(row), sizeof(row));
	return row;
}

static void add_symbols(struct code *code, const char *image, const Elf64_Shdr *table,
			const char *names)
{
	for (uint64_t at = 0; at + sizeof(Elf64_Sym) <= table->sh_size; at += sizeof(Elf64_Sym)) {
		const char *name;
		Elf64_Sym symbol;

		memcpy(&symbol, image + table->sh_offset + at, sizeof(symbol));
		name = names + symbol.st_name;
		if (symbol.st_other & SYMBOL_IS_ENTRY)
			add_entry(code, unstated, name, strlen(name));
	}
}

/* Reads machine code (cubin): the names of its kernels, and the size of what is loaded. */
static bool read_machine_code(const char *image, struct code *code)
{
	Elf64_Ehdr head;

	memcpy(&head, image, sizeof(head));
	if (head.e_machine != MACHINE_CUDA)
		return false;
	for (unsigned int i = 0; i < head.e_shnum; i++) {
		Elf64_Shdr row = section(image, &head, i);

		if (row.sh_flags & SHF_ALLOC)
			code->bytes += row.sh_size;
		if (row.sh_type == SHT_SYMTAB)
			add_symbols(code, image, &row,
				    image + section(image, &head, row.sh_link).sh_offset);
	}
	return true;
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

/* Advances to the next word and returns its length; 0: the end. Reads the comments before it. */
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

/* Reads PTX text: its entries, and the values in the comments before each entry. */
static bool read_text(const char *at, struct code *code)
{
	struct code_entry next = unstated;
	size_t length;

	code->bytes = CODE_UNSTATED;
	length = next_word(&at, code, &next);
	if (length != strlen(".version") || strncmp(at, ".version", length) != 0)
		return false;
	while (length) {
		bool is_entry = length == strlen(".entry") && strncmp(at, ".entry", length) == 0;

		at += length;
		length = next_word(&at, code, &next);
		if (!is_entry || !length)
			continue;
		add_entry(code, next, at, length);
		next = unstated;
	}
	return true;
}

int code_entry_find(const struct code *code, const char *name)
{
	for (unsigned int i = 0; i < code->entry_count; i++)
		if (strcmp(code->entries[i].name, name) == 0)
			return (int)i;
	return -1;
}

struct code *code_read(const void *image)
{
	struct code *code = must(calloc(1, sizeof(*code)));

	code->references = 1;
	if (memcmp(image, ELFMAG, SELFMAG) == 0 ? read_machine_code(image, code)
						: read_text(image, code))
		return code;
	code_release(code);
	return NULL;
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
