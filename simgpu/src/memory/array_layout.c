/*
 * Computes an array's size on the GPU: rows of a multiple of 512 bytes, levels, then layers. No GPU
 * has confirmed this size. The library charges what the driver reports.
 */
#include "memory/array.h"

enum { COMPRESSED_FIRST = 0x91, COMPRESSED_LAST = 0x9e, COMPRESSED_TEXELS = 4 };

/* Returns the bytes of a texel or a compressed block, or 0 for an unknown format. */
static unsigned int element_bytes(const CUDA_ARRAY3D_DESCRIPTOR *desc)
{
	if (desc->NumChannels != 1 && desc->NumChannels != 2 && desc->NumChannels != 4)
		return 0;
	if (desc->Format >= COMPRESSED_FIRST && desc->Format <= COMPRESSED_LAST)
		return 16;
	switch (desc->Format) { /* CU_AD_FORMAT_ */
	case 0x01:
	case 0x08:
		return desc->NumChannels;
	case 0x02:
	case 0x09:
	case 0x10:
		return 2 * desc->NumChannels;
	case 0x03:
	case 0x0a:
	case 0x20:
		return 4 * desc->NumChannels;
	default:
		return 0;
	}
}

static bool is_valid(const CUDA_ARRAY3D_DESCRIPTOR *desc, bool layered, bool cube)
{
	if (!desc->Width || desc->Width > 131072 || desc->Height > 131072 ||
	    desc->Flags & ~(unsigned int)CUDA_ARRAY3D_FLAGS_MASK)
		return false;
	if (cube &&
	    (desc->Width != desc->Height || desc->Depth % 6 || (!layered && desc->Depth != 6)))
		return false;
	if (layered || cube)
		return desc->Depth && desc->Depth <= 2048;
	return !desc->Depth || (desc->Height && desc->Depth <= 16384 && desc->Width <= 16384 &&
				desc->Height <= 16384);
}

/* Returns an extent at that level in units, rounded up. */
static uint64_t at_level(uint64_t extent, unsigned int level, unsigned int unit)
{
	uint64_t left = extent >> level ? extent >> level : 1;

	return (left + unit - 1) / unit;
}

/* Chooses a sparse array's tile: 64 KiB, as square as powers of two allow. */
static void choose_tile(struct array_layout *out, unsigned int unit)
{
	unsigned int left = (unsigned int)__builtin_ctz(ARRAY_TILE_CAP / out->element_bytes);

	out->tile.height = (1u << left / 2) * unit;
	out->tile.width = (1u << (left - left / 2)) * unit;
	out->tile.depth = 1;
}

bool array_layout(const CUDA_ARRAY3D_DESCRIPTOR *desc, unsigned int levels,
		  struct array_layout *out)
{
	bool layered = desc->Flags & CUDA_ARRAY3D_LAYERED,
	     cube = desc->Flags & CUDA_ARRAY3D_CUBEMAP;
	uint64_t layers = layered || cube ? desc->Depth : 1;
	uint64_t depth = layered || cube ? 1 : desc->Depth;
	unsigned int unit = desc->Format >= COMPRESSED_FIRST && desc->Format <= COMPRESSED_LAST
				? COMPRESSED_TEXELS
				: 1;
	uint64_t bytes = 0;

	*out = (struct array_layout){.element_bytes = element_bytes(desc)};
	if (!out->element_bytes || !is_valid(desc, layered, cube))
		return false;
	while (out->levels < levels && out->levels < ARRAY_LEVELS &&
	       (!out->levels || (desc->Width | desc->Height | depth) >> out->levels)) {
		unsigned int level = out->levels++;
		uint64_t row = at_level(desc->Width, level, unit) * out->element_bytes;

		bytes += (row + LINE_BYTES - 1) / LINE_BYTES * LINE_BYTES *
			 at_level(desc->Height, level, unit) * at_level(depth, level, 1);
	}
	choose_tile(out, unit);
	return !__builtin_mul_overflow(bytes, layers, &out->bytes);
}
