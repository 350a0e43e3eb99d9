/* See cubin.h. */
#define _GNU_SOURCE
#include "module/cubin.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "client/wire.h"
#include "module/elf_file.h"

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

typedef enum ptx_result each_attribute(int attribute, const char *value, uint16_t bytes,
				       void *context);

static enum ptx_result attributes(const struct elf_file *file, const Elf64_Shdr *section,
				  each_attribute *each, void *context)
{
	const char *at = file->bytes + section->sh_offset, *end = at + section->sh_size;
	enum ptx_result result = PTX_OK;

	if (section->sh_type == SHT_NOBITS)
		return PTX_OK;
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
	place = elf_word(value + 4) & 0xffff;
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
	rows[place] = (struct ptx_parameter){.offset = elf_word(value + 4) >> 16,
					     .bytes = elf_word(value + 8) >> PARAMETER_SIZE_SHIFT};
	return PTX_OK;
}

/* A function's values in the whole file's attributes: the stack of each symbol's thread. */
struct stacks {
	uint32_t *bytes; /* by symbol */
	uint32_t count;
};

static enum ptx_result stack_bytes(int attribute, const char *value, uint16_t bytes, void *context)
{
	const struct stacks *stacks = context;

	if (attribute == INFO_STACK_BYTES && bytes >= 8 && elf_word(value) < stacks->count)
		stacks->bytes[elf_word(value)] = elf_word(value + 4);
	return PTX_OK;
}

/* A section of attributes, and the function that it belongs to. */
struct info {
	const char *function;
	unsigned int section;
};

static int by_function(const void *left, const void *right)
{
	return strcmp(((const struct info *)left)->function,
		      ((const struct info *)right)->function);
}

/* Findings of one walk over the sections. */
struct reader {
	const struct elf_file *file;
	struct ptx *ptx;
	struct info *infos; /* sorted */
	unsigned int info_count;
	struct stacks stacks;
	uint64_t *place; /* by section: where its variables begin; NO_PLACE: it has none */
};

#define NO_PLACE      UINT64_MAX
#define PLACE_ALIGNED 256
#define PLACES_MAX    (1ull << 40)

static bool has_variables(const char *name)
{
	return strncmp(name, ".nv.global", strlen(".nv.global")) == 0 ||
	       strcmp(name, ".nv.constant3") == 0;
}

/* Those with contents first, so that the contents are no larger than the file. */
static enum ptx_result place_variables(struct reader *reader, bool with_contents)
{
	const struct elf_file *file = reader->file;
	struct ptx *ptx = reader->ptx;

	for (unsigned int i = 0; i < file->section_count; i++) {
		Elf64_Shdr section = elf_section(file, i);

		if ((section.sh_type != SHT_NOBITS) != with_contents ||
		    !has_variables(elf_text(file, &file->names, section.sh_name)))
			continue;
		if (section.sh_size > PLACES_MAX || ptx->variables_bytes > PLACES_MAX)
			return PTX_MALFORMED;
		reader->place[i] =
		    (ptx->variables_bytes + PLACE_ALIGNED - 1) & ~(uint64_t)(PLACE_ALIGNED - 1);
		ptx->variables_bytes = reader->place[i] + section.sh_size;
		if (with_contents)
			ptx->initial_bytes = ptx->variables_bytes;
	}
	return PTX_OK;
}

static enum ptx_result copy_contents(const struct reader *reader)
{
	const struct elf_file *file = reader->file;
	struct ptx *ptx = reader->ptx;

	ptx->initial = calloc(1, ptx->initial_bytes + 1);
	if (!ptx->initial)
		return PTX_NO_MEMORY;
	for (unsigned int i = 0; i < file->section_count; i++) {
		Elf64_Shdr section = elf_section(file, i);

		if (reader->place[i] != NO_PLACE && section.sh_type != SHT_NOBITS)
			memcpy(ptx->initial + reader->place[i], file->bytes + section.sh_offset,
			       section.sh_size);
	}
	return PTX_OK;
}

static enum ptx_result add_entry(struct reader *reader, uint32_t symbol, const char *name)
{
	const struct info wanted = {.function = name}, *info;
	struct ptx *ptx = reader->ptx;
	struct ptx_entry *entries = ptx_grow(ptx->entries, ptx->entry_count, sizeof(*entries));
	struct ptx_entry *entry;
	Elf64_Shdr section;

	if (!entries)
		return PTX_NO_MEMORY;
	ptx->entries = entries;
	entry = &entries[ptx->entry_count];
	*entry = (struct ptx_entry){.name = strdup(name),
				    .duration_ns = PTX_DURATION_DEFAULT,
				    .duration_argument = PTX_NO_ARGUMENT,
				    .local_bytes = reader->stacks.bytes[symbol]};
	if (!entry->name)
		return PTX_NO_MEMORY;
	ptx->entry_count++;
	info = bsearch(&wanted, reader->infos, reader->info_count, sizeof(*info), by_function);
	if (!info)
		return PTX_OK;
	section = elf_section(reader->file, info->section);
	return attributes(reader->file, &section, parameter, entry);
}

static enum ptx_result add_variable(struct reader *reader, const Elf64_Sym *symbol,
				    const char *name)
{
	uint64_t place = symbol->st_shndx < reader->file->section_count
			     ? reader->place[symbol->st_shndx]
			     : NO_PLACE;
	Elf64_Shdr section;

	if (place == NO_PLACE || !symbol->st_size)
		return PTX_OK;
	section = elf_section(reader->file, symbol->st_shndx);
	if (symbol->st_value > section.sh_size ||
	    symbol->st_size > section.sh_size - symbol->st_value)
		return PTX_MALFORMED;
	return ptx_variable_add(
	    reader->ptx, name, strlen(name),
	    (struct ptx_variable){.offset = place + symbol->st_value, .bytes = symbol->st_size});
}

static enum ptx_result read_symbols(struct reader *reader, const Elf64_Shdr *table)
{
	const struct elf_file *file = reader->file;
	enum ptx_result result = PTX_OK;
	Elf64_Shdr names;
	Elf64_Sym symbol;

	if (table->sh_link >= file->section_count)
		return PTX_MALFORMED;
	names = elf_section(file, table->sh_link);
	for (uint32_t i = 0; result == PTX_OK && i < reader->stacks.count; i++) {
		const char *name;

		memcpy(&symbol, file->bytes + table->sh_offset + i * sizeof(symbol),
		       sizeof(symbol));
		name = elf_text(file, &names, symbol.st_name);
		if (symbol.st_other & SYMBOL_IS_ENTRY)
			result = add_entry(reader, i, name);
		else if (ELF64_ST_TYPE(symbol.st_info) == STT_OBJECT)
			result = add_variable(reader, &symbol, name);
	}
	return result;
}

/* The attributes of functions, sorted by name; those of the whole file; the loaded size. */
static enum ptx_result read_sections(struct reader *reader)
{
	const struct elf_file *file = reader->file;
	enum ptx_result result = PTX_OK;

	for (unsigned int i = 0; result == PTX_OK && i < file->section_count; i++) {
		Elf64_Shdr section = elf_section(file, i);
		const char *name = elf_text(file, &file->names, section.sh_name);

		reader->place[i] = NO_PLACE;
		if (section.sh_flags & SHF_ALLOC)
			reader->ptx->code_bytes += section.sh_size;
		if (strcmp(name, ".nv.info") == 0)
			result = attributes(file, &section, stack_bytes, &reader->stacks);
		else if (strncmp(name, INFO_PREFIX, strlen(INFO_PREFIX)) == 0)
			reader->infos[reader->info_count++] =
			    (struct info){name + strlen(INFO_PREFIX), i};
	}
	qsort(reader->infos, reader->info_count, sizeof(*reader->infos), by_function);
	if (result == PTX_OK)
		result = place_variables(reader, true);
	if (result == PTX_OK)
		result = place_variables(reader, false);
	return result == PTX_OK ? copy_contents(reader) : result;
}

/* The section index of the symbol table; there is one, or none if there is nothing to call. */
static unsigned int symbol_table(const struct elf_file *file)
{
	unsigned int i = 0;

	while (i < file->section_count && elf_section(file, i).sh_type != SHT_SYMTAB)
		i++;
	return i;
}

static enum ptx_result read_file(const struct elf_file *file, struct ptx *ptx)
{
	unsigned int table_index = symbol_table(file);
	struct reader reader = {.file = file, .ptx = ptx};
	enum ptx_result result = PTX_NO_MEMORY;
	Elf64_Shdr table = {0};

	if (table_index < file->section_count)
		table = elf_section(file, table_index);
	reader.stacks.count = (uint32_t)(table.sh_size / sizeof(Elf64_Sym));
	reader.stacks.bytes = calloc(reader.stacks.count + 1, sizeof(*reader.stacks.bytes));
	reader.infos = calloc(file->section_count + 1, sizeof(*reader.infos));
	reader.place = calloc(file->section_count + 1, sizeof(*reader.place));
	if (reader.stacks.bytes && reader.infos && reader.place)
		result = read_sections(&reader);
	if (result == PTX_OK && table.sh_size)
		result = read_symbols(&reader, &table);
	free(reader.stacks.bytes);
	free(reader.infos);
	free(reader.place);
	return result;
}

enum ptx_result cubin_parse(const void *image, size_t bytes, struct ptx **out)
{
	struct elf_file file = {.bytes = image, .size = bytes};
	enum ptx_result result;
	Elf64_Ehdr head;
	struct ptx *ptx;

	if (bytes < sizeof(head))
		return PTX_NOT_PTX;
	memcpy(&head, image, sizeof(head));
	if (head.e_ident[EI_CLASS] != ELFCLASS64 || head.e_machine != MACHINE_CUDA)
		return PTX_NOT_PTX;
	if (!elf_open(&file, &head))
		return PTX_MALFORMED;
	ptx = calloc(1, sizeof(*ptx));
	if (!ptx)
		return PTX_NO_MEMORY;
	ptx->references = 1;
	ptx->machine_code = true;
	ptx->target = head.e_ident[EI_ABIVERSION] >= ABI_WIDE_TARGET ? head.e_flags >> 8 & 0xff
								     : head.e_flags & 0xff;
	result = read_file(&file, ptx);
	if (result == PTX_OK)
		result = ptx_finish(ptx);
	if (result == PTX_OK)
		*out = ptx;
	else
		ptx_release(ptx);
	return result;
}
