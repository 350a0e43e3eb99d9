/* Machine code (cubin): the names of its kernels, and the size of what is loaded; see code.h. */
#include "module/code.h"

#include <elf.h>
#include <string.h>

enum {
	MACHINE_CUDA = 190,
	SYMBOL_IS_ENTRY = 0x10, /* in st_other */
};

/* Compilers put the tables on odd addresses too. */
static Elf64_Shdr section(const char *image, const Elf64_Ehdr *head, unsigned int index)
{
	Elf64_Shdr row;

	memcpy(&row, image + head->e_shoff + index * sizeof(row), sizeof(row));
	return row;
}

static bool add_entries(const char *image, const Elf64_Shdr *table, const char *names,
			struct code *code)
{
	static const struct code_entry unstated = {.duration_ns = CODE_UNSTATED,
						   .duration_argument = CODE_UNSTATED};

	for (uint64_t at = 0; at + sizeof(Elf64_Sym) <= table->sh_size; at += sizeof(Elf64_Sym)) {
		const char *name;
		Elf64_Sym symbol;

		memcpy(&symbol, image + table->sh_offset + at, sizeof(symbol));
		name = names + symbol.st_name;
		if (symbol.st_other & SYMBOL_IS_ENTRY &&
		    !code_entry_add(code, unstated, name, strlen(name)))
			return false;
	}
	return true;
}

enum code_result cubin_read(const char *image, struct code *code)
{
	Elf64_Ehdr head;

	memcpy(&head, image, sizeof(head));
	if (head.e_ident[EI_CLASS] != ELFCLASS64 || head.e_machine != MACHINE_CUDA)
		return CODE_INVALID;
	for (unsigned int i = 0; i < head.e_shnum; i++) {
		Elf64_Shdr row = section(image, &head, i);

		if (row.sh_flags & SHF_ALLOC)
			code->bytes += row.sh_size;
		if (row.sh_type != SHT_SYMTAB)
			continue;
		if (!add_entries(image, &row, image + section(image, &head, row.sh_link).sh_offset,
				 code))
			return CODE_NO_MEMORY;
	}
	return CODE_OK;
}
