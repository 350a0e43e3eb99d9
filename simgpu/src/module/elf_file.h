/*
 * An ELF file in memory: its sections and the texts that they name. Its headers are checked once,
 * when it is opened; a file of unknown size is trusted.
 */
#ifndef SIMGPU_ELF_FILE_H
#define SIMGPU_ELF_FILE_H

#include <elf.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct elf_file {
	const char *bytes;
	size_t size;
	uint64_t sections; /* offset */
	unsigned int section_count;
	Elf64_Shdr names;
};

/* False if a section with contents is not inside the file. */
bool elf_open(struct elf_file *file, const Elf64_Ehdr *head);
/* Compilers put tables directly after the one before them, on odd addresses too. */
Elf64_Shdr elf_section(const struct elf_file *file, unsigned int index);
/* The text at an offset of a section of texts; empty if there is none. */
const char *elf_text(const struct elf_file *file, const Elf64_Shdr *strings, uint32_t at);
/* The word at any address. */
uint32_t elf_word(const char *bytes);

#endif
