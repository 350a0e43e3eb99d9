/*
 * Arrays that have no memory of their own. Each tile of a sparse array is backed by a piece of a
 * physical allocation. An array with deferred mapping is backed as a whole. A backed tile holds its
 * allocation until it is backed again or unmapped, or its array ends.
 */
#include "memory/array.h"

#include <stdlib.h>
#include <string.h>

struct tile {
	struct tile *next;
	CUarrayMapInfo where;
	struct physical *memory;
};

static void drop(struct tile **link)
{
	struct tile *gone = *link;

	*link = gone->next;
	physical_unpin(gone->memory);
	free(gone);
}

void tiles_forget(struct array *array)
{
	while (array->tiles)
		drop(&array->tiles);
}

/* Returns true if the tile `at` begins within the area `where`. */
static bool covers(const CUarrayMapInfo *where, const CUarrayMapInfo *at)
{
	if (where->subresourceType != at->subresourceType)
		return false;
	if (where->subresourceType == 1)
		return where->subresource.miptail.layer == at->subresource.miptail.layer;
	return where->subresource.sparseLevel.level == at->subresource.sparseLevel.level &&
	       where->subresource.sparseLevel.layer == at->subresource.sparseLevel.layer &&
	       at->subresource.sparseLevel.offsetX - where->subresource.sparseLevel.offsetX <
		   where->subresource.sparseLevel.extentWidth &&
	       at->subresource.sparseLevel.offsetY - where->subresource.sparseLevel.offsetY <
		   where->subresource.sparseLevel.extentHeight &&
	       at->subresource.sparseLevel.offsetZ - where->subresource.sparseLevel.offsetZ <
		   where->subresource.sparseLevel.extentDepth;
}

static void unmap(struct array *array, const CUarrayMapInfo *where)
{
	struct tile **at = &array->tiles;

	while (*at)
		if (covers(where, &(*at)->where))
			drop(at);
		else
			at = &(*at)->next;
}

static struct array *named(const CUarrayMapInfo *info)
{
	struct array *array = info->resourceType == CU_RESOURCE_TYPE_ARRAY
				  ? object_get(info->resource.array, OBJECT_ARRAY)
				  : object_get(info->resource.mipmap, OBJECT_MIPMAP);

	return array && array->desc.Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)
		   ? array
		   : NULL;
}

static CUresult check(const CUarrayMapInfo *info)
{
	if ((info->resourceType != CU_RESOURCE_TYPE_ARRAY &&
	     info->resourceType != CU_RESOURCE_TYPE_MIPMAPPED_ARRAY) ||
	    !named(info) || info->subresourceType < 0 || info->subresourceType > 1 || info->flags)
		return CUDA_ERROR_INVALID_VALUE;
	if (info->memOperationType == CU_MEM_OPERATION_TYPE_UNMAP)
		return CUDA_SUCCESS;
	return info->memOperationType == CU_MEM_OPERATION_TYPE_MAP && info->memHandleType == 0 &&
		       physical_get(info->memHandle.memHandle)
		   ? CUDA_SUCCESS
		   : CUDA_ERROR_INVALID_VALUE;
}

static void apply(const CUarrayMapInfo *info)
{
	struct array *array = named(info);
	struct tile *tile;

	unmap(array, info);
	if (info->memOperationType == CU_MEM_OPERATION_TYPE_UNMAP)
		return;
	tile = must(malloc(sizeof(*tile)));
	*tile = (struct tile){array->tiles, *info, physical_get(info->memHandle.memHandle)};
	array->tiles = tile;
	physical_pin(tile->memory);
}

CUresult cuMemMapArrayAsync(CUarrayMapInfo *list, unsigned int count, CUstream handle)
{
	struct stream *stream;

	TRY(stream_enter(handle, &stream));
	if (!list || !count)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	for (unsigned int i = 0; i < count; i++)
		TRY_LOCKED(check(&list[i]));
	for (unsigned int i = 0; i < count; i++)
		apply(&list[i]);
	return physical_leave(CUDA_SUCCESS);
}

static CUresult requirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *out, void *handle,
			     enum object_kind kind, CUdevice ordinal)
{
	struct device *device;
	struct array *array;

	TRY(driver_enter());
	TRY_LOCKED(device_get(ordinal, &device));
	array = object_get(handle, kind);
	if (!out || !array || !(array->desc.Flags & CUDA_ARRAY3D_DEFERRED_MAPPING))
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	*out =
	    (CUDA_ARRAY_MEMORY_REQUIREMENTS){.size = array->layout.bytes, .alignment = LINE_BYTES};
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *out, CUarray handle,
				      CUdevice ordinal)
{
	return requirements(out, handle, OBJECT_ARRAY, ordinal);
}

CUresult cuMipmappedArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *out,
					       CUmipmappedArray handle, CUdevice ordinal)
{
	return requirements(out, handle, OBJECT_MIPMAP, ordinal);
}

CUresult cuMipmappedArrayGetSparseProperties(CUDA_ARRAY_SPARSE_PROPERTIES *out,
					     CUmipmappedArray handle)
{
	struct array *array;

	TRY(driver_enter());
	array = object_get(handle, OBJECT_MIPMAP);
	if (!out || !array || !(array->desc.Flags & CUDA_ARRAY3D_SPARSE))
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	memset(out, 0, sizeof(*out));
	out->tileExtent.width = array->layout.tile.width;
	out->tileExtent.height = array->layout.tile.height;
	out->tileExtent.depth = array->layout.tile.depth;
	out->miptailFirstLevel = array->layout.levels;
	return driver_leave(CUDA_SUCCESS);
}
