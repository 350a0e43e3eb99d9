/*
 * Fat binaries: several images of the same code, for different GPUs, in the compilers' format.
 *
 * A wrapper of version 1 points to one fat binary, of version 2 to a list of them. An entry is PTX
 * or machine code, plain or packed (LZ4, zstd). Sizes in a fat binary are trusted up to `bytes`.
 *
 * Pure: bytes in, an entry out.
 */
#ifndef SIMGPU_FATBIN_H
#define SIMGPU_FATBIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum fatbin_packing { FATBIN_PLAIN, FATBIN_LZ4, FATBIN_ZSTD, FATBIN_UNKNOWN_PACKING };

struct fatbin_entry {
	bool machine_code;
	unsigned int target; /* of sm_80: 80 */
	enum fatbin_packing packing;
	const char *payload;
	size_t packed_bytes, plain_bytes;
};

/* True if `image` begins as a fat binary or as a wrapper of one. At least 4 bytes are there. */
bool fatbin_begins(const void *image);
/*
 * The entry that a GPU of that capability (80 for 8.0) runs: the machine code of its generation
 * that is newest and not newer than it, or else the newest such PTX, or else the first entry.
 * False: there is none.
 */
bool fatbin_choose(const void *image, size_t bytes, unsigned int capability,
		   struct fatbin_entry *entry);
/* Its plain bytes and a final NUL; the caller frees them. NULL if it cannot be unpacked. */
char *fatbin_unpack(const struct fatbin_entry *entry);

#endif
