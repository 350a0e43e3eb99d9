/* An ELF note in libvgpu.so with the versions of the files that it shares with the agent.
 * gpuslice/contract/library_file.py reads the note from the file. */
#include "vgpu/contract.h"

/* The layout of an ELF note. Owner and text are padded to 4 bytes. */
static const struct {
	uint32_t owner_bytes;
	uint32_t text_bytes;
	uint32_t type;
	_Alignas(4) char owner[sizeof VGPU_NOTE_OWNER];
	_Alignas(4) char text[sizeof VGPU_CONTRACT];
} note __attribute__((used, section(".note.gpuslice"), aligned(4))) = {
    .owner_bytes = sizeof VGPU_NOTE_OWNER,
    .text_bytes = sizeof VGPU_CONTRACT,
    .type = VGPU_NOTE_TYPE,
    .owner = VGPU_NOTE_OWNER,
    .text = VGPU_CONTRACT,
};
