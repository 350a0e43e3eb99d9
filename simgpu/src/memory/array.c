/*
 * Arrays and mipmapped arrays: see array.h. They end with the context in which they were made. The
 * array of a mipmap's level belongs to the mipmap. Each level has one handle, which is destroyed
 * only with the mipmap.
 */
#include "memory/array.h"

static bool without_memory(const CUDA_ARRAY3D_DESCRIPTOR *desc)
{
	return desc->Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING);
}

/* Makes the object of an array whose memory is allocated. Fails if its context has ended. */
static CUresult place(CUcontext context_handle, uint64_t context_id, struct array *made,
		      enum object_kind kind, void **handle)
{
	struct context *context;
	struct array *array;

	driver_lock();
	TRY_LOCKED(context_get(context_handle, &context));
	if (context->id != context_id)
		return driver_leave(CUDA_ERROR_CONTEXT_IS_DESTROYED);
	array = object_new(kind, sizeof(*array));
	made->object = array->object;
	made->context = context;
	*array = *made;
	*handle = object_handle(array);
	return driver_leave(CUDA_SUCCESS);
}

CUresult array_make(const CUDA_ARRAY3D_DESCRIPTOR *desc, unsigned int levels, enum object_kind kind,
		    struct physical *external, void **handle)
{
	struct array made = {.external = external};
	struct context *context;
	struct device *device;
	uint64_t context_id;
	CUcontext current;
	CUresult result;

	TRY(context_enter(NULL, &context));
	if (!handle || !desc || !levels)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	made.desc = *desc;
	device = context->device;
	context_id = context->id;
	current = object_handle(context);
	driver_unlock();
	if (!array_layout(&made.desc, levels, &made.layout))
		return CUDA_ERROR_INVALID_VALUE;
	if (!external && !without_memory(desc))
		TRY(device_take(device, context_id, made.layout.bytes, &made.id));
	result = place(current, context_id, &made, kind, handle);
	if (result != CUDA_SUCCESS && made.id)
		(void)device_give_back(device, made.id);
	return result;
}

CUresult cuArray3DCreate_v2(CUarray *out, const CUDA_ARRAY3D_DESCRIPTOR *desc)
{
	return array_make(desc, 1, OBJECT_ARRAY, NULL, (void **)out);
}

CUresult cuArray3DCreate(CUarray *out, const CUDA_ARRAY3D_DESCRIPTOR_v1 *old)
{
	CUDA_ARRAY3D_DESCRIPTOR desc;

	if (!old)
		return cuArray3DCreate_v2(out, NULL);
	desc = (CUDA_ARRAY3D_DESCRIPTOR){old->Width,  old->Height,	old->Depth,
					 old->Format, old->NumChannels, old->Flags};
	return cuArray3DCreate_v2(out, &desc);
}

CUresult cuArrayCreate_v2(CUarray *out, const CUDA_ARRAY_DESCRIPTOR *given)
{
	CUDA_ARRAY3D_DESCRIPTOR desc;

	if (!given)
		return cuArray3DCreate_v2(out, NULL);
	desc = (CUDA_ARRAY3D_DESCRIPTOR){given->Width,	given->Height,	    0,
					 given->Format, given->NumChannels, 0};
	return cuArray3DCreate_v2(out, &desc);
}

CUresult cuArrayCreate(CUarray *out, const CUDA_ARRAY_DESCRIPTOR_v1 *old)
{
	CUDA_ARRAY3D_DESCRIPTOR desc;

	if (!old)
		return cuArray3DCreate_v2(out, NULL);
	desc =
	    (CUDA_ARRAY3D_DESCRIPTOR){old->Width, old->Height, 0, old->Format, old->NumChannels, 0};
	return cuArray3DCreate_v2(out, &desc);
}

CUresult cuMipmappedArrayCreate(CUmipmappedArray *out, const CUDA_ARRAY3D_DESCRIPTOR *desc,
				unsigned int levels)
{
	return array_make(desc, levels, OBJECT_MIPMAP, NULL, (void **)out);
}

/* Removes all of the array but its memory at the daemon. */
static void dismantle(struct array *array)
{
	for (int i = 0; i < ARRAY_LEVELS; i++)
		if (array->levels[i])
			object_free(array->levels[i]);
	tiles_forget(array);
	if (array->external)
		physical_unpin(array->external);
	object_free(array);
}

static CUresult destroy(void *handle, enum object_kind kind)
{
	struct context *context;
	struct device *device;
	struct array *array;
	uint64_t id;
	CUresult result;

	TRY(context_enter(NULL, &context));
	array = object_get(handle, kind);
	if (!array || array->mipmap)
		return driver_leave(CUDA_ERROR_INVALID_HANDLE);
	id = array->id;
	device = array->context->device;
	dismantle(array);
	result = physical_leave(CUDA_SUCCESS);
	return id ? device_give_back(device, id) : result;
}

CUresult cuArrayDestroy(CUarray handle)
{
	return destroy(handle, OBJECT_ARRAY);
}

CUresult cuMipmappedArrayDestroy(CUmipmappedArray handle)
{
	return destroy(handle, OBJECT_MIPMAP);
}

/* The daemon frees the memory itself when the context ends. */
void arrays_forget(struct context *context)
{
	static const enum object_kind kinds[] = {OBJECT_MIPMAP, OBJECT_ARRAY};
	struct array *array;

	for (int i = 0; i < 2; i++) {
		uint32_t at = 0;

		while ((array = object_next(kinds[i], &at)))
			if (array->context == context && !array->mipmap)
				dismantle(array);
	}
	physical_delete_released();
}

static struct array *make_level(struct array *mipmap, unsigned int level)
{
	struct array *array = object_new(OBJECT_ARRAY, sizeof(*array));

	array->context = mipmap->context;
	array->mipmap = mipmap;
	array->desc = mipmap->desc;
	return mipmap->levels[level] = array;
}

CUresult cuMipmappedArrayGetLevel(CUarray *out, CUmipmappedArray handle, unsigned int level)
{
	struct array *mipmap, *array;

	TRY(driver_enter());
	mipmap = object_get(handle, OBJECT_MIPMAP);
	if (!mipmap)
		return driver_leave(CUDA_ERROR_INVALID_HANDLE);
	if (!out || level >= mipmap->layout.levels)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	array = mipmap->levels[level] ? mipmap->levels[level] : make_level(mipmap, level);
	*out = object_handle(array);
	return driver_leave(CUDA_SUCCESS);
}
