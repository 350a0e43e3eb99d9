/* See fatbin.h. */
#include "module/fatbin.h"

#include <stdlib.h>
#include <string.h>

#ifdef SIMGPU_LZ4
#include <lz4.h>
#endif
#ifdef SIMGPU_ZSTD
#include <zstd.h>
#endif

/* Facts of the format. */
enum { KIND_PTX = 1, KIND_ELF = 2, FLAG_LZ4 = 0x2000, FLAG_ZSTD = 0x8000 };
static const uint32_t fatbin_magic = 0xba55ed50, wrapper_magic = 0x466243b1;
#define PLAIN_MAX_BYTES (1ull << 31)

struct wrapper {
	uint32_t magic, version;
	const void *data;
	const void *const *list; /* of version 2: ends with NULL */
};

struct head {
	uint32_t magic;
	uint16_t version, head_bytes;
	uint64_t body_bytes;
};

struct entry_head {
	uint16_t kind, version;
	uint32_t head_bytes, payload_bytes, reserved0, packed_bytes, reserved1;
	uint16_t minor, major;
	uint32_t target, reserved2, reserved3;
	uint64_t flags, reserved4, plain_bytes;
};

_Static_assert(sizeof(struct entry_head) == 64, "the least head of an entry");

static uint32_t magic_of(const void *image)
{
	uint32_t magic;

	memcpy(&magic, image, sizeof(magic));
	return magic;
}

bool fatbin_begins(const void *image)
{
	return magic_of(image) == fatbin_magic || magic_of(image) == wrapper_magic;
}

/* How well an entry matches: 0 if it does not run there. */
static unsigned int suits(const struct fatbin_entry *entry, unsigned int capability)
{
	if (entry->target > capability)
		return 0;
	if (!entry->machine_code)
		return entry->target;
	return entry->target / 10 == capability / 10 ? 1000 + entry->target : 0;
}

static enum fatbin_packing packing_of(const struct entry_head *head)
{
	if (head->flags & FLAG_ZSTD)
		return FATBIN_ZSTD;
	if (head->flags & FLAG_LZ4)
		return FATBIN_LZ4;
	return head->packed_bytes ? FATBIN_UNKNOWN_PACKING : FATBIN_PLAIN;
}

/* Sets `*at` after the entry that is there; false if there is none. */
static bool read_entry(const char **at, const char *end, struct fatbin_entry *entry)
{
	struct entry_head head;
	uint64_t stored_bytes;

	if ((size_t)(end - *at) < sizeof(head))
		return false;
	memcpy(&head, *at, sizeof(head));
	stored_bytes =
	    head.packed_bytes > head.payload_bytes ? head.packed_bytes : head.payload_bytes;
	if (head.head_bytes < sizeof(head) || head.head_bytes > (size_t)(end - *at) ||
	    stored_bytes > (size_t)(end - *at) - head.head_bytes)
		return false;
	*entry = (struct fatbin_entry){
	    .machine_code = head.kind == KIND_ELF,
	    .target = head.target,
	    .packing = head.kind == KIND_ELF || head.kind == KIND_PTX ? packing_of(&head)
								      : FATBIN_UNKNOWN_PACKING,
	    .payload = *at + head.head_bytes,
	    .packed_bytes = head.packed_bytes ? head.packed_bytes : head.payload_bytes,
	    .plain_bytes = head.packed_bytes ? head.plain_bytes : head.payload_bytes,
	};
	*at += head.head_bytes + stored_bytes;
	return true;
}

static void choose_in(const char *image, size_t bytes, unsigned int capability,
		      struct fatbin_entry *best)
{
	struct fatbin_entry entry;
	struct head head;
	const char *at, *end;

	if (bytes < sizeof(head))
		return;
	memcpy(&head, image, sizeof(head));
	if (head.magic != fatbin_magic || head.head_bytes < sizeof(head) ||
	    head.head_bytes > bytes || head.body_bytes > bytes - head.head_bytes)
		return;
	at = image + head.head_bytes;
	end = at + head.body_bytes;
	while (read_entry(&at, end, &entry))
		if (entry.packing != FATBIN_UNKNOWN_PACKING &&
		    (!best->payload || suits(&entry, capability) > suits(best, capability)))
			*best = entry;
}

bool fatbin_choose(const void *image, size_t bytes, unsigned int capability,
		   struct fatbin_entry *entry)
{
	struct wrapper wrapper;

	*entry = (struct fatbin_entry){0};
	if (magic_of(image) == fatbin_magic) {
		choose_in(image, bytes, capability, entry);
	} else if (bytes >= sizeof(wrapper)) {
		memcpy(&wrapper, image, sizeof(wrapper));
		if (wrapper.data)
			choose_in(wrapper.data, SIZE_MAX, capability, entry);
		for (size_t i = 0; wrapper.version == 2 && wrapper.list && wrapper.list[i]; i++)
			choose_in(wrapper.list[i], SIZE_MAX, capability, entry);
	}
	return entry->payload;
}

static bool unpack(const struct fatbin_entry *entry, char *plain)
{
	switch (entry->packing) {
	case FATBIN_PLAIN:
		memcpy(plain, entry->payload, entry->plain_bytes);
		return true;
#ifdef SIMGPU_LZ4
	case FATBIN_LZ4:
		return LZ4_decompress_safe(entry->payload, plain, (int)entry->packed_bytes,
					   (int)entry->plain_bytes) == (int)entry->plain_bytes;
#endif
#ifdef SIMGPU_ZSTD
	case FATBIN_ZSTD:
		return ZSTD_decompress(plain, entry->plain_bytes, entry->payload,
				       entry->packed_bytes) == entry->plain_bytes;
#endif
	default:
		return false;
	}
}

char *fatbin_unpack(const struct fatbin_entry *entry)
{
	char *plain;

	if (entry->plain_bytes >= PLAIN_MAX_BYTES || entry->packed_bytes >= PLAIN_MAX_BYTES)
		return NULL;
	plain = malloc(entry->plain_bytes + 1);
	if (!plain || !unpack(entry, plain)) {
		free(plain);
		return NULL;
	}
	plain[entry->plain_bytes] = '\0';
	return plain;
}
