/*
 * The entries that copy and fill: lines, rectangles, boxes, with arrays on either side.
 *
 * Data is really moved, when the copy is submitted; it takes no time on the GPU. A synchronous copy
 * first waits for the work of its stream.
 */
#include "graph/transfer.h"

#define PITCH_MAX_BYTES 2147483647 /* CU_DEVICE_ATTRIBUTE_MAX_PITCH */

struct submission {
	CUstream stream;
	bool wait;
};

static const struct submission synchronous = {.wait = true};

static CUresult submit(const struct submission *how, const struct transfer *transfer)
{
	return how->wait ? transfer_wait(transfer) : transfer_submit(transfer, how->stream);
}

static CUresult copy(const struct submission *how, uint64_t to, enum side to_side, uint64_t from,
		     enum side from_side, size_t bytes)
{
	struct transfer transfer = {.to = {.side = to_side, .address = to},
				    .from = {.side = from_side, .address = from},
				    .width = bytes,
				    .height = 1,
				    .depth = 1};

	return submit(how, &transfer);
}

static uint64_t address_of(const void *pointer)
{
	return (uint64_t)(uintptr_t)pointer;
}

CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
	return copy(&synchronous, to, SIDE_ANY, from, SIDE_ANY, bytes);
}

CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
	return copy(&(struct submission){stream, false}, to, SIDE_ANY, from, SIDE_ANY, bytes);
}

CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes)
{
	return copy(&synchronous, to, SIDE_DEVICE, address_of(from), SIDE_ANY, bytes);
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes, CUstream stream)
{
	return copy(&(struct submission){stream, false}, to, SIDE_DEVICE, address_of(from),
		    SIDE_ANY, bytes);
}

CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes)
{
	return copy(&synchronous, address_of(to), SIDE_ANY, from, SIDE_DEVICE, bytes);
}

CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, CUstream stream)
{
	return copy(&(struct submission){stream, false}, address_of(to), SIDE_ANY, from,
		    SIDE_DEVICE, bytes);
}

CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
	return copy(&synchronous, to, SIDE_DEVICE, from, SIDE_DEVICE, bytes);
}

CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
	return copy(&(struct submission){stream, false}, to, SIDE_DEVICE, from, SIDE_DEVICE, bytes);
}

static CUresult both_alive(CUcontext to, CUcontext from)
{
	struct context *context;
	CUresult result = driver_enter();

	if (result != CUDA_SUCCESS)
		return result;
	result = context_get(to, &context);
	return driver_leave(result == CUDA_SUCCESS ? context_get(from, &context) : result);
}

CUresult cuMemcpyPeer(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
		      CUcontext from_context, size_t bytes)
{
	CUresult result = both_alive(to_context, from_context);

	return result == CUDA_SUCCESS ? cuMemcpyDtoD_v2(to, from, bytes) : result;
}

CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
			   CUcontext from_context, size_t bytes, CUstream stream)
{
	CUresult result = both_alive(to_context, from_context);

	return result == CUDA_SUCCESS ? cuMemcpyDtoDAsync_v2(to, from, bytes, stream) : result;
}

/* One side of a copy of rectangles or boxes, as the two descriptions have it. */
struct given_side {
	int type;
	const void *host;
	CUdeviceptr device;
	CUarray array;
	size_t x, y, z, pitch, height;
};

/* Moves `*address` from a box's origin to its first byte; false if there is none. */
static bool enter_box(uint64_t *address, const struct given_side *given, size_t width)
{
	uint64_t end, rows, offset;

	return *address && given->pitch <= PITCH_MAX_BYTES &&
	       !__builtin_add_overflow(given->x, width, &end) && end <= given->pitch &&
	       !__builtin_mul_overflow(given->z, given->height, &rows) &&
	       !__builtin_add_overflow(rows, given->y, &rows) &&
	       !__builtin_mul_overflow(rows, given->pitch, &offset) &&
	       !__builtin_add_overflow(offset, given->x, &offset) &&
	       !__builtin_add_overflow(*address, offset, address);
}

static CUresult side_of(const struct given_side *given, size_t width, struct place *place)
{
	if (given->type < CU_MEMORYTYPE_HOST || given->type > CU_MEMORYTYPE_UNIFIED)
		return CUDA_ERROR_INVALID_VALUE;
	if (given->type == CU_MEMORYTYPE_ARRAY) {
		*place = (struct place){.side = SIDE_ARRAY,
					.array = given->array,
					.x = given->x,
					.y = given->y,
					.z = given->z};
		return CUDA_SUCCESS;
	}
	*place = (struct place){
	    .side = given->type == CU_MEMORYTYPE_DEVICE ? SIDE_DEVICE : SIDE_ANY,
	    .address = given->type == CU_MEMORYTYPE_HOST ? address_of(given->host) : given->device,
	    .pitch = given->pitch,
	    .slice = given->pitch * given->height};
	return enter_box(&place->address, given, width) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult copy_box(const struct submission *how, const struct given_side *to,
			 const struct given_side *from, size_t width, size_t height, size_t depth)
{
	struct transfer transfer = {.width = width, .height = height, .depth = depth};
	CUresult result = side_of(to, width, &transfer.to);

	if (result == CUDA_SUCCESS)
		result = side_of(from, width, &transfer.from);
	return result == CUDA_SUCCESS ? submit(how, &transfer) : result;
}

static CUresult copy_2d(const struct submission *how, const CUDA_MEMCPY2D *given)
{
	struct given_side to, from;

	if (!driver_is_up())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!given)
		return CUDA_ERROR_INVALID_VALUE;
	to = (struct given_side){.type = given->dstMemoryType,
				 .host = given->dstHost,
				 .device = given->dstDevice,
				 .array = given->dstArray,
				 .x = given->dstXInBytes,
				 .y = given->dstY,
				 .pitch = given->dstPitch ? given->dstPitch : given->WidthInBytes};
	from =
	    (struct given_side){.type = given->srcMemoryType,
				.host = given->srcHost,
				.device = given->srcDevice,
				.array = given->srcArray,
				.x = given->srcXInBytes,
				.y = given->srcY,
				.pitch = given->srcPitch ? given->srcPitch : given->WidthInBytes};
	return copy_box(how, &to, &from, given->WidthInBytes, given->Height, 1);
}

CUresult cuMemcpy2D_v2(const CUDA_MEMCPY2D *given)
{
	return copy_2d(&synchronous, given);
}

CUresult cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D *given)
{
	return copy_2d(&synchronous, given);
}

CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *given, CUstream stream)
{
	return copy_2d(&(struct submission){stream, false}, given);
}

/* A pitch or height of 0 means that of the copied region. */
static CUresult copy_3d(const struct submission *how, const CUDA_MEMCPY3D *given)
{
	struct given_side to, from;

	if (!driver_is_up())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!given || given->srcLOD || given->dstLOD)
		return CUDA_ERROR_INVALID_VALUE;
	to = (struct given_side){.type = given->dstMemoryType,
				 .host = given->dstHost,
				 .device = given->dstDevice,
				 .array = given->dstArray,
				 .x = given->dstXInBytes,
				 .y = given->dstY,
				 .z = given->dstZ,
				 .pitch = given->dstPitch ? given->dstPitch : given->WidthInBytes,
				 .height = given->dstHeight ? given->dstHeight : given->Height};
	from = (struct given_side){.type = given->srcMemoryType,
				   .host = given->srcHost,
				   .device = given->srcDevice,
				   .array = given->srcArray,
				   .x = given->srcXInBytes,
				   .y = given->srcY,
				   .z = given->srcZ,
				   .pitch = given->srcPitch ? given->srcPitch : given->WidthInBytes,
				   .height = given->srcHeight ? given->srcHeight : given->Height};
	return copy_box(how, &to, &from, given->WidthInBytes, given->Height, given->Depth);
}

CUresult cuMemcpy3D_v2(const CUDA_MEMCPY3D *given)
{
	return copy_3d(&synchronous, given);
}

CUresult cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D *given, CUstream stream)
{
	return copy_3d(&(struct submission){stream, false}, given);
}

/* `bytes` wide values, `width` of them per row. */
static CUresult fill(CUstream stream, CUdeviceptr to, size_t pitch, uint32_t value,
		     unsigned int bytes, size_t width, size_t height)
{
	struct transfer transfer = {.to = {.side = SIDE_DEVICE, .address = to, .pitch = pitch},
				    .height = height,
				    .depth = 1,
				    .value_bytes = bytes,
				    .value = value};

	if (!driver_is_up())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (to % bytes || __builtin_mul_overflow(width, bytes, &transfer.width) ||
	    (height > 1 && (pitch % bytes || pitch < transfer.width)))
		return CUDA_ERROR_INVALID_VALUE;
	return transfer_submit(&transfer, stream);
}

/* The three widths, each as a line and as rows, each with a stream and without. */
#define FILL(bits, type)                                                                           \
	CUresult cuMemsetD##bits##_v2(CUdeviceptr to, type value, size_t count)                    \
	{                                                                                          \
		return fill(NULL, to, 0, value, bits / 8, count, 1);                               \
	}                                                                                          \
	CUresult cuMemsetD##bits##Async(CUdeviceptr to, type value, size_t count, CUstream stream) \
	{                                                                                          \
		return fill(stream, to, 0, value, bits / 8, count, 1);                             \
	}                                                                                          \
	CUresult cuMemsetD2D##bits##_v2(CUdeviceptr to, size_t pitch, type value, size_t width,    \
					size_t height)                                             \
	{                                                                                          \
		return fill(NULL, to, pitch, value, bits / 8, width, height);                      \
	}                                                                                          \
	CUresult cuMemsetD2D##bits##Async(CUdeviceptr to, size_t pitch, type value, size_t width,  \
					  size_t height, CUstream stream)                          \
	{                                                                                          \
		return fill(stream, to, pitch, value, bits / 8, width, height);                    \
	}

FILL(8, unsigned char)
FILL(16, unsigned short)
FILL(32, unsigned int)
