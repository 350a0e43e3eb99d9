/* See array_extents.h. */
#include "array_extents.h"

#include "array_bytes.h"
#include "hooks.h"

enum { CUBE_FACES = 6, MOST_CHANNELS = 4, KNOWN_FLAGS = 0xff };

enum shape { LINE, PLANE, SOLID, LINES, PLANES, CUBE, CUBES };

/* CU_DEVICE_ATTRIBUTE_MAXIMUM_..., of width, height and depth; 0: that extent is 0. */
static const struct {
	int width, height, depth;
	bool in_faces; /* square, and six of them make a cube */
} maxima[] = {
    [LINE] = {21, 0, 0, false},	  [PLANE] = {22, 23, 0, false},	  [SOLID] = {24, 25, 26, false},
    [LINES] = {42, 0, 43, false}, [PLANES] = {27, 28, 29, false}, [CUBE] = {52, 52, 0, true},
    [CUBES] = {53, 53, 54, true},
};

/* Solids may be larger in one extent where they are smaller in others. */
static const int other_solid[] = {47, 48, 49};

static enum shape shape_of(const CUDA_ARRAY3D_DESCRIPTOR *array)
{
	bool layered = array->flags & CUDA_ARRAY3D_LAYERED;

	if (array->flags & CUDA_ARRAY3D_CUBEMAP)
		return layered ? CUBES : CUBE;
	if (layered)
		return array->height ? PLANES : LINES;
	if (array->depth)
		return SOLID;
	return array->height ? PLANE : LINE;
}

/* A driver that does not know the attribute sets no maximum by it. */
static bool fits(uint64_t extent, int attribute, CUdevice device)
{
	int most = 0;

	if (!attribute)
		return !extent;
	return extent && (real_cuDeviceGetAttribute(&most, attribute, device) != CUDA_SUCCESS ||
			  most <= 0 || extent <= (uint64_t)most);
}

bool vgpu_array_is_possible(const CUDA_ARRAY3D_DESCRIPTOR *array, CUdevice device)
{
	enum shape shape = shape_of(array);
	uint64_t depth = shape == CUBE ? 0 : array->depth;

	if (!vgpu_array_format_is_known(array->format) || !array->channels ||
	    array->channels > MOST_CHANNELS || array->flags & ~(unsigned int)KNOWN_FLAGS)
		return false;
	if (maxima[shape].in_faces &&
	    (array->width != array->height || !array->depth || array->depth % CUBE_FACES ||
	     (shape == CUBE && array->depth != CUBE_FACES)))
		return false;
	if (fits(array->width, maxima[shape].width, device) &&
	    fits(array->height, maxima[shape].height, device) &&
	    fits(depth, maxima[shape].depth, device))
		return true;
	return shape == SOLID && fits(array->width, other_solid[0], device) &&
	       fits(array->height, other_solid[1], device) &&
	       fits(array->depth, other_solid[2], device);
}
