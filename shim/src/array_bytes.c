/*
 * Public descriptions of this maker's images (Mesa's NVK, NVIDIA's Tegra manuals) say: an image is
 * cut into pieces of 64 bytes by 8 rows; up to 16 pieces are stacked and, in three dimensions, up
 * to 32 slices joined, but no more than the level fills by half; a layer is a whole number of level
 * 0's units. Whether CUDA's arrays are laid out just so, only a card can tell; elements of unknown
 * formats are taken to be as large as any is, 16 bytes.
 */
#include "array_bytes.h"

#include <stddef.h>

enum { PIECE_BYTES = 64, PIECE_ROWS = 8, MOST_STACKED = 16, MOST_JOINED = 32, LINE_BYTES = 512 };

struct format {
	uint8_t first, last; /* of a run of alike formats */
	uint8_t bits;	     /* of a texel, all planes; 0: see channel_bits */
	uint8_t channel_bits;
	uint8_t block; /* texels on a side of what is stored as one element */
};

static const struct format formats[] = {
    {0x01, 0x01, 0, 8, 1},   {0x02, 0x02, 0, 16, 1},  {0x03, 0x03, 0, 32, 1},
    {0x08, 0x08, 0, 8, 1},   {0x09, 0x09, 0, 16, 1},  {0x0a, 0x0a, 0, 32, 1},
    {0x10, 0x10, 0, 16, 1},  {0x20, 0x20, 0, 32, 1},  {0x50, 0x50, 32, 0, 1},
    {0x91, 0x92, 64, 0, 4},  {0x93, 0x96, 128, 0, 4}, {0x97, 0x98, 64, 0, 4},
    {0x99, 0x9e, 128, 0, 4}, {0x9f, 0xa1, 24, 0, 1},  {0xa2, 0xa2, 16, 0, 1},
    {0xa3, 0xa4, 32, 0, 1},  {0xa5, 0xa5, 16, 0, 1},  {0xa6, 0xa9, 32, 0, 1},
    {0xb0, 0xb0, 12, 0, 1},  {0xb1, 0xb1, 64, 0, 1},  {0xb2, 0xb2, 24, 0, 1},
    {0xb3, 0xb3, 48, 0, 1},  {0xb4, 0xb4, 24, 0, 1},  {0xb5, 0xb5, 48, 0, 1},
    {0xc0, 0xc0, 8, 0, 1},   {0xc1, 0xc1, 16, 0, 1},  {0xc2, 0xc2, 32, 0, 1},
    {0xc3, 0xc3, 16, 0, 1},  {0xc4, 0xc4, 32, 0, 1},  {0xc5, 0xc5, 64, 0, 1},
    {0xc6, 0xc6, 8, 0, 1},   {0xc7, 0xc7, 16, 0, 1},  {0xc8, 0xc8, 32, 0, 1},
    {0xc9, 0xc9, 16, 0, 1},  {0xca, 0xca, 32, 0, 1},  {0xcb, 0xcb, 64, 0, 1},
};

static const struct format *known_format(int format)
{
	for (unsigned int i = 0; i < sizeof(formats) / sizeof(*formats); i++)
		if (format >= formats[i].first && format <= formats[i].last)
			return &formats[i];
	return NULL;
}

bool vgpu_array_format_is_known(int format)
{
	return known_format(format) != NULL;
}

static struct format find_format(int format)
{
	const struct format *known = known_format(format);

	return known ? *known : (struct format){.bits = 128, .block = 1};
}

/* Saturating: a description may say anything. */
static uint64_t times(uint64_t a, uint64_t b)
{
	uint64_t product;

	return __builtin_mul_overflow(a, b, &product) ? UINT64_MAX : product;
}

static uint64_t plus(uint64_t a, uint64_t b)
{
	return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

static uint64_t in_units(uint64_t amount, uint64_t unit)
{
	return amount / unit + (amount % unit != 0);
}

/* How many are joined for an extent of that many: halved as long as half would do. */
static uint64_t joined(uint64_t extent, uint64_t most)
{
	while (most > 1 && most / 2 >= extent)
		most /= 2;
	return most;
}

static uint64_t at_level(uint64_t extent, unsigned int level)
{
	return extent >> level > 1 ? extent >> level : 1;
}

static uint64_t level_bytes(uint64_t row_bytes, uint64_t rows, uint64_t slices, uint64_t *unit)
{
	uint64_t pieces_high = in_units(rows, PIECE_ROWS);
	uint64_t stacked = joined(pieces_high, MOST_STACKED);
	uint64_t deep = joined(slices, MOST_JOINED);
	uint64_t units;

	*unit = PIECE_BYTES * PIECE_ROWS * stacked * deep;
	units = times(in_units(row_bytes, PIECE_BYTES), in_units(pieces_high, stacked));
	return times(times(units, in_units(slices, deep)), *unit);
}

uint64_t vgpu_array_bytes(const CUDA_ARRAY3D_DESCRIPTOR *array, unsigned int levels)
{
	struct format format = find_format(array->format);
	uint64_t bits = format.bits ? format.bits : (uint64_t)format.channel_bits * array->channels;
	bool in_layers = array->flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP);
	uint64_t depth = in_layers ? 1 : array->depth, layers = in_layers ? array->depth : 1;
	uint64_t layer_bytes = 0, unit = LINE_BYTES, first_unit = LINE_BYTES;
	bool more = true;

	for (unsigned int level = 0; level < levels && more && level < 64; level++) {
		uint64_t width = at_level(array->width, level);
		uint64_t height = at_level(array->height, level), slices = at_level(depth, level);
		uint64_t row_bytes = in_units(times(in_units(width, format.block), bits), 8);

		if (array->height)
			layer_bytes =
			    plus(layer_bytes, level_bytes(row_bytes, in_units(height, format.block),
							  slices, &unit));
		else
			layer_bytes =
			    plus(layer_bytes, times(in_units(row_bytes, LINE_BYTES), LINE_BYTES));
		first_unit = level ? first_unit : unit;
		more = width > 1 || height > 1 || slices > 1;
	}
	return times(times(in_units(layer_bytes, first_unit), first_unit), layers);
}
