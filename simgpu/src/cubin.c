/* See cubin.h. */
#define _GNU_SOURCE
#include "cubin.h"

#include <elf.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "wire.h"

/* Facts of the format that elf.h does not have. */
enum {
	MACHINE_CUDA = 190,
	ABI_WIDE_TARGET = 8,	/* from this ABI version on the target is in the second byte */
	SYMBOL_IS_ENTRY = 0x10, /* in st_other */
	INFO_FORMAT_SIZED = 4,	/* an attribute with a length and bytes; others have two bytes */
	INFO_STACK_BYTES = 0x12,
	INFO_PARAMETER = 0x17,
	PARAMETER_SIZE_SHIFT = 18,
	MOST_PARAMETERS = 4096,
};

#define INFO_PREFIX ".nv.info."

struct file {
	const char *bytes;
	size_t size;
	uint64_t sections; /* offset */
	unsigned int section_count;
	Elf64_Shdr names;
};

static bool inside(const struct file *file, uint64_t offset, uint64_t bytes)
{
	return offset <= file->size && bytes <= file->size - offset;
}

/* Compilers put tables where the one before them ends, on odd addresses too. */
static Elf64_Shdr section_at(const struct file *file, unsigned int index)
{
	Elf64_Shdr section;

	memcpy(&section, file->bytes + file->sections + index * sizeof(section), sizeof(section));
	return section;
}

static const char *text_at(const struct file *file, const Elf64_Shdr *strings, uint32_t at)
{
	const char *text = file->bytes + strings->sh_offset + at;

	if (at >= strings->sh_size || !memchr(text, '\0', strings->sh_size - at))
		return "";
	return text;
}

static bool open_file(struct file *file, const Elf64_Ehdr *head)
{
	if (head->e_shentsize != sizeof(Elf64_Shdr) || head->e_shstrndx >= head->e_shnum ||
	    !inside(file, head->e_shoff, head->e_shnum * sizeof(Elf64_Shdr)))
		return false;
	file->sections = head->e_shoff;
	file->section_count = head->e_shnum;
	file->names = section_at(file, head->e_shstrndx);
	for (unsigned int i = 0; i < file->section_count; i++) {
		Elf64_Shdr section = section_at(file, i);

		if (section.sh_type != SHT_NOBITS &&
		    !inside(file, section.sh_offset, section.sh_size))
			return false;
	}
	return true;
}

static uint32_t word_at(const char *bytes)
{
	uint32_t word;

	memcpy(&word, bytes, sizeof(word));
	return word;
}

typedef enum ptx_result each_attribute(int attribute, const char *value, uint16_t bytes,
				       void *context);

static enum ptx_result attributes(const struct file *file, const Elf64_Shdr *section,
				  each_attribute *each, void *context)
{
	const char *at = file->bytes + section->sh_offset, *end = at + section->sh_size;
	enum ptx_result result = PTX_OK;

	while (result == PTX_OK && end - at >= 4) {
		uint16_t bytes = 0;

		if (at[0] == INFO_FORMAT_SIZED)
			memcpy(&bytes, at + 2, sizeof(bytes));
		if (end - at - 4 < bytes)
			return PTX_MALFORMED;
		result = each((uint8_t)at[1], at + 4, bytes, context);
		at += 4 + bytes;
	}
	return result;
}

/* They come in any order, each with its place among them. */
static enum ptx_result parameter(int attribute, const char *value, uint16_t bytes, void *context)
{
	struct ptx_entry *entry = context;
	struct ptx_parameter *rows = entry->parameters;
	unsigned int place;

	if (attribute != INFO_PARAMETER || bytes < 12)
		return PTX_OK;
	place = word_at(value + 4) & 0xffff;
	if (place >= MOST_PARAMETERS)
		return PTX_MALFORMED;
	if (place >= entry->parameter_count) {
		rows = realloc(rows, (place + 1) * sizeof(*rows));
		if (!rows)
			return PTX_NO_MEMORY;
		memset(rows + entry->parameter_count, 0,
		       (place + 1 - entry->parameter_count) * sizeof(*rows));
		entry->parameters = rows;
		entry->parameter_count = place + 1;
	}
	rows[place] = (struct ptx_parameter){.offset = word_at(value + 4) >> 16,
					     .bytes = word_at(value + 8) >> PARAMETER_SIZE_SHIFT};
	return PTX_OK;
}

struct stack {
	uint32_t symbol;
	struct ptx_entry *entry;
};

static enum ptx_result stack_bytes(int attribute, const char *value, uint16_t bytes, void *context)
{
	const struct stack *stack = context;

	if (attribute == INFO_STACK_BYTES && bytes >= 8 && word_at(value) == stack->symbol)
		stack->entry->local_bytes = word_at(value + 4);
	return PTX_OK;
}

static enum ptx_result read_info(const struct file *file, uint32_t symbol, struct ptx_entry *entry)
{
	struct stack stack = {symbol, entry};
	enum ptx_result result = PTX_OK;

	for (unsigned int i = 0; result == PTX_OK && i < file->section_count; i++) {
		Elf64_Shdr section = section_at(file, i);
		const char *name = text_at(file, &file->names, section.sh_name);

		if (strcmp(name, ".nv.info") == 0)
			result = attributes(file, &section, stack_bytes, &stack);
		else if (strncmp(name, INFO_PREFIX, strlen(INFO_PREFIX)) == 0 &&
			 strcmp(name + strlen(INFO_PREFIX), entry->name) == 0)
			result = attributes(file, &section, parameter, entry);
	}
	return result;
}

static enum ptx_result add_entry(const struct file *file, uint32_t symbol, const char *name,
				 struct ptx *ptx)
{
	struct ptx_entry *entries =
	    realloc(ptx->entries, (ptx->entry_count + 1) * sizeof(*entries));
	struct ptx_entry *entry;

	if (!entries)
		return PTX_NO_MEMORY;
	ptx->entries = entries;
	entry = &entries[ptx->entry_count];
	*entry = (struct ptx_entry){.name = strdup(name), .duration_ns = SIM_DURATION_DEFAULT};
	if (!entry->name)
		return PTX_NO_MEMORY;
	ptx->entry_count++;
	return read_info(file, symbol, entry);
}

static enum ptx_result read_symbols(const struct file *file, const Elf64_Shdr *table,
				    struct ptx *ptx)
{
	enum ptx_result result = PTX_OK;
	Elf64_Shdr names;
	Elf64_Sym symbol;

	if (table->sh_link >= file->section_count)
		return PTX_MALFORMED;
	names = section_at(file, table->sh_link);
	for (uint32_t i = 0; result == PTX_OK && i < table->sh_size / sizeof(symbol); i++) {
		memcpy(&symbol, file->bytes + table->sh_offset + i * sizeof(symbol),
		       sizeof(symbol));
		if (symbol.st_other & SYMBOL_IS_ENTRY)
			result = add_entry(file, i, text_at(file, &names, symbol.st_name), ptx);
	}
	return result;
}

static enum ptx_result read_sections(const struct file *file, struct ptx *ptx)
{
	enum ptx_result result = PTX_OK;

	for (unsigned int i = 0; result == PTX_OK && i < file->section_count; i++) {
		Elf64_Shdr section = section_at(file, i);

		if (section.sh_flags & SHF_ALLOC)
			ptx->code_bytes += section.sh_size;
		if (section.sh_type == SHT_SYMTAB)
			result = read_symbols(file, &section, ptx);
	}
	return result;
}

enum ptx_result cubin_parse(const void *image, size_t bytes, struct ptx **out)
{
	struct file file = {.bytes = image, .size = bytes};
	enum ptx_result result;
	Elf64_Ehdr head;
	struct ptx *ptx;

	if (bytes < sizeof(head))
		return PTX_NOT_PTX;
	memcpy(&head, image, sizeof(head));
	if (head.e_ident[EI_CLASS] != ELFCLASS64 || head.e_machine != MACHINE_CUDA)
		return PTX_NOT_PTX;
	if (!open_file(&file, &head))
		return PTX_MALFORMED;
	ptx = calloc(1, sizeof(*ptx));
	if (!ptx)
		return PTX_NO_MEMORY;
	ptx->references = 1;
	ptx->machine_code = true;
	ptx->target = head.e_ident[EI_ABIVERSION] >= ABI_WIDE_TARGET ? head.e_flags >> 8 & 0xff
								     : head.e_flags & 0xff;
	result = read_sections(&file, ptx);
	if (result == PTX_OK)
		*out = ptx;
	else
		ptx_release(ptx);
	return result;
}
