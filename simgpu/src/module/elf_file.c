/* See elf_file.h. */
#include "module/elf_file.h"

#include <string.h>

static bool inside(const struct elf_file *file, uint64_t offset, uint64_t bytes)
{
	return offset <= file->size && bytes <= file->size - offset;
}

Elf64_Shdr elf_section(const struct elf_file *file, unsigned int index)
{
	Elf64_Shdr section;

	memcpy(&section, file->bytes + file->sections + index * sizeof(section), sizeof(section));
	return section;
}

const char *elf_text(const struct elf_file *file, const Elf64_Shdr *strings, uint32_t at)
{
	const char *text = file->bytes + strings->sh_offset + at;

	if (strings->sh_type == SHT_NOBITS || at >= strings->sh_size ||
	    !memchr(text, '\0', strings->sh_size - at))
		return "";
	return text;
}

bool elf_open(struct elf_file *file, const Elf64_Ehdr *head)
{
	if (head->e_shentsize != sizeof(Elf64_Shdr) || head->e_shstrndx >= head->e_shnum ||
	    !inside(file, head->e_shoff, head->e_shnum * sizeof(Elf64_Shdr)))
		return false;
	file->sections = head->e_shoff;
	file->section_count = head->e_shnum;
	file->names = elf_section(file, head->e_shstrndx);
	for (unsigned int i = 0; i < file->section_count; i++) {
		Elf64_Shdr section = elf_section(file, i);

		if (section.sh_type != SHT_NOBITS &&
		    !inside(file, section.sh_offset, section.sh_size))
			return false;
	}
	return true;
}

uint32_t elf_word(const char *bytes)
{
	uint32_t word;

	memcpy(&word, bytes, sizeof(word));
	return word;
}
