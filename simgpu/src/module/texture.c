/*
 * Texture and surface objects: descriptions that are stored and returned. No kernel reads them.
 */
#include "memory/array.h"

enum { RESOURCE_ARRAY, RESOURCE_MIPMAPPED_ARRAY, RESOURCE_LINEAR, RESOURCE_PITCH_2D };

struct texture {
	struct object object; /* OBJECT_TEXTURE or OBJECT_SURFACE */
	CUDA_RESOURCE_DESC resource;
	CUDA_TEXTURE_DESC texture;
	CUDA_RESOURCE_VIEW_DESC view;
	bool has_view;
};

static bool resource_is_good(const CUDA_RESOURCE_DESC *resource, bool surface)
{
	struct device *device;

	if (!resource || resource->flags)
		return false;
	switch (resource->resType) {
	case RESOURCE_ARRAY:
		return array_get((CUarray)resource->of.handle);
	case RESOURCE_MIPMAPPED_ARRAY:
		return !surface && mipmap_get((CUmipmappedArray)resource->of.handle);
	case RESOURCE_LINEAR:
	case RESOURCE_PITCH_2D:
		return !surface && memory_find((uint64_t)(uintptr_t)resource->of.handle, &device);
	default:
		return false;
	}
}

static CUresult create(CUtexObject *out, const CUDA_RESOURCE_DESC *resource,
		       const CUDA_TEXTURE_DESC *description, const CUDA_RESOURCE_VIEW_DESC *view,
		       bool surface)
{
	struct context *context;
	struct texture *texture;
	CUresult result = context_enter(NULL, &context);

	if (result != CUDA_SUCCESS)
		return result;
	if (!out || (!surface && !description) || !resource_is_good(resource, surface))
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	texture = object_new(surface ? OBJECT_SURFACE : OBJECT_TEXTURE, sizeof(*texture));
	if (!texture)
		return driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
	texture->resource = *resource;
	if (description)
		texture->texture = *description;
	if (view)
		texture->view = *view;
	texture->has_view = view;
	*out = (CUtexObject)(uintptr_t)object_handle(texture);
	return driver_leave(CUDA_SUCCESS);
}

static CUresult enter(CUtexObject handle, enum object_kind kind, const void *out,
		      struct texture **texture)
{
	CUresult result = driver_enter();

	if (result != CUDA_SUCCESS)
		return result;
	*texture = object_get((void *)(uintptr_t)handle, kind);
	return out && *texture ? CUDA_SUCCESS : driver_leave(CUDA_ERROR_INVALID_VALUE);
}

static CUresult destroy(CUtexObject handle, enum object_kind kind)
{
	struct texture *texture;
	CUresult result = enter(handle, kind, &texture, &texture);

	if (result != CUDA_SUCCESS)
		return result;
	object_free(texture);
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuTexObjectCreate(CUtexObject *out, const CUDA_RESOURCE_DESC *resource,
			   const CUDA_TEXTURE_DESC *texture, const CUDA_RESOURCE_VIEW_DESC *view)
{
	return create(out, resource, texture, view, false);
}

CUresult cuSurfObjectCreate(CUtexObject *out, const CUDA_RESOURCE_DESC *resource)
{
	return create(out, resource, NULL, NULL, true);
}

CUresult cuTexObjectDestroy(CUtexObject handle)
{
	return destroy(handle, OBJECT_TEXTURE);
}

CUresult cuSurfObjectDestroy(CUtexObject handle)
{
	return destroy(handle, OBJECT_SURFACE);
}

static CUresult get_resource(CUDA_RESOURCE_DESC *out, CUtexObject handle, enum object_kind kind)
{
	struct texture *texture;
	CUresult result = enter(handle, kind, out, &texture);

	if (result != CUDA_SUCCESS)
		return result;
	*out = texture->resource;
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuTexObjectGetResourceDesc(CUDA_RESOURCE_DESC *out, CUtexObject handle)
{
	return get_resource(out, handle, OBJECT_TEXTURE);
}

CUresult cuSurfObjectGetResourceDesc(CUDA_RESOURCE_DESC *out, CUtexObject handle)
{
	return get_resource(out, handle, OBJECT_SURFACE);
}

CUresult cuTexObjectGetTextureDesc(CUDA_TEXTURE_DESC *out, CUtexObject handle)
{
	struct texture *texture;
	CUresult result = enter(handle, OBJECT_TEXTURE, out, &texture);

	if (result != CUDA_SUCCESS)
		return result;
	*out = texture->texture;
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuTexObjectGetResourceViewDesc(CUDA_RESOURCE_VIEW_DESC *out, CUtexObject handle)
{
	struct texture *texture;
	CUresult result = enter(handle, OBJECT_TEXTURE, out, &texture);

	if (result != CUDA_SUCCESS)
		return result;
	if (!texture->has_view)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	*out = texture->view;
	return driver_leave(CUDA_SUCCESS);
}
