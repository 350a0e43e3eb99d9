/*
 * The size of an array on the GPU.
 *
 * Images are stored in tiles. The smallest is 64 bytes wide and 8 rows high; up to 16 of them are
 * stacked, and in a 3D array up to 32 slices joined, as far as the level is that large. Each layer
 * stores its levels one after the other and is a whole number of level 0's tiles. A 1D array is a
 * row of whole 512 bytes. Public drivers describe image layouts of this vendor this way; that this
 * driver allocates exactly that is an assumption, which only a GPU can confirm.
 */
#include "memory/array.h"

#define TILE_ROW_BYTES 64
#define TILE_ROWS      8
#define LINE_BYTES     512
#define MAX_STACK      4 /* powers of two */
#define MAX_SLICES     5

static const struct {
	int format;
	unsigned int channel_bytes; /* of one channel; with fixed_bytes: 0 */
	unsigned int fixed_bytes;   /* of an element, however many channels */
	unsigned int width;
} formats[] = {
    {0x01, 1, 0, 1},  {0x02, 2, 0, 1},	{0x03, 4, 0, 1},  {0x08, 1, 0, 1},  {0x09, 2, 0, 1},
    {0x0a, 4, 0, 1},  {0x10, 2, 0, 1},	{0x20, 4, 0, 1},  {0xc0, 0, 1, 1},  {0xc1, 0, 2, 1},
    {0xc2, 0, 4, 1},  {0xc3, 0, 2, 1},	{0xc4, 0, 4, 1},  {0xc5, 0, 8, 1},  {0xc6, 0, 1, 1},
    {0xc7, 0, 2, 1},  {0xc8, 0, 4, 1},	{0xc9, 0, 2, 1},  {0xca, 0, 4, 1},  {0xcb, 0, 8, 1},
    {0x91, 0, 8, 4},  {0x92, 0, 8, 4},	{0x93, 0, 16, 4}, {0x94, 0, 16, 4}, {0x95, 0, 16, 4},
    {0x96, 0, 16, 4}, {0x97, 0, 8, 4},	{0x98, 0, 8, 4},  {0x99, 0, 16, 4}, {0x9a, 0, 16, 4},
    {0x9b, 0, 16, 4}, {0x9c, 0, 16, 4}, {0x9d, 0, 16, 4}, {0x9e, 0, 16, 4},
};

static bool read_format(const CUDA_ARRAY3D_DESCRIPTOR *desc, struct array_layout *out)
{
	unsigned int channels = desc->NumChannels;

	if (channels != 1 && channels != 2 && channels != 4)
		return false;
	for (size_t i = 0; i < sizeof(formats) / sizeof(*formats); i++) {
		if (formats[i].format != desc->Format)
			continue;
		out->element_bytes = formats[i].fixed_bytes ? formats[i].fixed_bytes
							    : formats[i].channel_bytes * channels;
		out->element_width = formats[i].width;
		return true;
	}
	return false;
}

struct array_level {
	uint64_t row_bytes, rows, slices; /* what a program sees */
};

struct extent {
	uint64_t width, height, depth;
	bool line; /* one-dimensional */
};

static bool read_extent(const CUDA_ARRAY3D_DESCRIPTOR *desc, struct extent *extent,
			unsigned int *layers)
{
	bool layered = desc->Flags & CUDA_ARRAY3D_LAYERED,
	     cube = desc->Flags & CUDA_ARRAY3D_CUBEMAP;
	bool in_layers = layered || cube;

	*layers = in_layers ? (unsigned int)desc->Depth : 1;
	*extent = (struct extent){.width = desc->Width,
				  .height = desc->Height ? desc->Height : 1,
				  .depth = in_layers || !desc->Depth ? 1 : desc->Depth,
				  .line = !desc->Height};
	if (!desc->Width || desc->Width > 131072 || desc->Height > 131072)
		return false;
	if (desc->Flags & ~(unsigned int)CUDA_ARRAY3D_FLAGS_MASK)
		return false;
	if (in_layers && (!desc->Depth || desc->Depth > 2048))
		return false;
	if (cube &&
	    (desc->Width != desc->Height || desc->Depth % 6 || (!layered && desc->Depth != 6)))
		return false;
	return in_layers || !desc->Depth ||
	       (desc->Height && desc->Depth <= 16384 && desc->Width <= 16384 &&
		desc->Height <= 16384);
}

static uint64_t up_to(uint64_t value, uint64_t unit)
{
	return (value + unit - 1) / unit * unit;
}

/* The smallest power of two that holds `count`, as its exponent, and at most `most`. */
static unsigned int exponent(uint64_t count, unsigned int most)
{
	unsigned int power = 0;

	while (power < most && 1ull << power < count)
		power++;
	return power;
}

static uint64_t level_bytes(const struct array_level *level, bool line, uint64_t *tile_bytes)
{
	unsigned int stack = exponent((level->rows + TILE_ROWS - 1) / TILE_ROWS, MAX_STACK);
	unsigned int slices = exponent(level->slices, MAX_SLICES);

	*tile_bytes = line ? LINE_BYTES : (uint64_t)TILE_ROW_BYTES * TILE_ROWS << (stack + slices);
	if (line)
		return up_to(level->row_bytes, LINE_BYTES);
	return up_to(level->row_bytes, TILE_ROW_BYTES) *
	       up_to(level->rows, (uint64_t)TILE_ROWS << stack) *
	       up_to(level->slices, 1ull << slices);
}

static uint64_t halved(uint64_t extent, unsigned int level)
{
	return extent >> level ? extent >> level : 1;
}

/* A sparse tile has 64 KiB: as square as its powers of two allow. */
static void choose_tile(struct array_layout *out, bool deep)
{
	unsigned int left = exponent(ARRAY_TILE_CAP / out->element_bytes, 16);

	out->tile.depth = deep ? 1u << left / 3 : 1;
	left -= deep ? left / 3 : 0;
	out->tile.height = (1u << left / 2) * out->element_width;
	out->tile.width = (1u << (left - left / 2)) * out->element_width;
}

bool array_layout(const CUDA_ARRAY3D_DESCRIPTOR *desc, unsigned int levels,
		  struct array_layout *out)
{
	struct extent extent;
	uint64_t stride = 0, tile_bytes, first_tile_bytes = 0, largest;

	*out = (struct array_layout){0};
	if (!read_format(desc, out) || !read_extent(desc, &extent, &out->layers))
		return false;
	largest = extent.width > extent.height ? extent.width : extent.height;
	largest = largest > extent.depth ? largest : extent.depth;
	out->levels = exponent(largest + 1, ARRAY_LEVELS);
	out->levels = levels < out->levels ? levels : out->levels;
	choose_tile(out, extent.depth > 1);
	out->tail_first_level = out->levels;
	for (unsigned int i = 0; i < out->levels; i++) {
		struct array_level level;
		uint64_t width = halved(extent.width, i), height = halved(extent.height, i);
		uint64_t bytes;

		level.row_bytes =
		    (width + out->element_width - 1) / out->element_width * out->element_bytes;
		level.rows = (height + out->element_width - 1) / out->element_width;
		level.slices = halved(extent.depth, i);
		bytes = level_bytes(&level, extent.line, &tile_bytes);
		first_tile_bytes = i ? first_tile_bytes : tile_bytes;
		stride += bytes;
		if (width >= out->tile.width && height >= out->tile.height &&
		    level.slices >= out->tile.depth)
			continue;
		out->tail_first_level = out->tail_first_level < i ? out->tail_first_level : i;
		out->tail_bytes += bytes;
	}
	stride = up_to(stride, first_tile_bytes);
	out->tail_bytes = up_to(out->tail_bytes, ARRAY_TILE_CAP);
	out->alignment = first_tile_bytes;
	return !__builtin_mul_overflow(stride, (uint64_t)out->layers, &out->bytes);
}
