/*
 * The entries that copy and fill: lines and rectangles.
 *
 * Data is really moved, when the copy is submitted; the GPU is busy as long as its rate of copies
 * says. A synchronous copy first waits for the work of its stream, and then for itself.
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
				    .height = 1};

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

/* One side of a copy of rectangles. */
struct given_side {
	int type;
	const void *host;
	CUdeviceptr device;
	size_t x, y, pitch;
};

/* Its place, from the first byte of the rectangle on. Arrays have no data to copy. */
static CUresult side_of(const struct given_side *given, size_t width, struct place *place)
{
	uint64_t end, offset;

	if (given->type < CU_MEMORYTYPE_HOST || given->type > CU_MEMORYTYPE_UNIFIED)
		return CUDA_ERROR_INVALID_VALUE;
	if (given->type == CU_MEMORYTYPE_ARRAY)
		return CUDA_ERROR_NOT_SUPPORTED;
	*place = (struct place){
	    .side = given->type == CU_MEMORYTYPE_DEVICE ? SIDE_DEVICE : SIDE_ANY,
	    .address = given->type == CU_MEMORYTYPE_HOST ? address_of(given->host) : given->device,
	    .pitch = given->pitch ? given->pitch : width};
	return place->address && place->pitch <= PITCH_MAX_BYTES &&
		       !__builtin_add_overflow(given->x, width, &end) && end <= place->pitch &&
		       !__builtin_mul_overflow(given->y, place->pitch, &offset) &&
		       !__builtin_add_overflow(offset, given->x, &offset) &&
		       !__builtin_add_overflow(place->address, offset, &place->address)
		   ? CUDA_SUCCESS
		   : CUDA_ERROR_INVALID_VALUE;
}

static CUresult copy_2d(const struct submission *how, const CUDA_MEMCPY2D *given)
{
	struct transfer transfer = {0};
	struct given_side to, from;
	CUresult result;

	if (!driver_is_up())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!given)
		return CUDA_ERROR_INVALID_VALUE;
	to = (struct given_side){given->dstMemoryType, given->dstHost, given->dstDevice,
				 given->dstXInBytes,   given->dstY,    given->dstPitch};
	from = (struct given_side){given->srcMemoryType, given->srcHost, given->srcDevice,
				   given->srcXInBytes,	 given->srcY,	 given->srcPitch};
	transfer.width = given->WidthInBytes;
	transfer.height = given->Height;
	result = side_of(&to, transfer.width, &transfer.to);
	if (result == CUDA_SUCCESS)
		result = side_of(&from, transfer.width, &transfer.from);
	return result == CUDA_SUCCESS ? submit(how, &transfer) : result;
}

CUresult cuMemcpy2D_v2(const CUDA_MEMCPY2D *given)
{
	return copy_2d(&synchronous, given);
}

CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *given, CUstream stream)
{
	return copy_2d(&(struct submission){stream, false}, given);
}

/* `bytes` wide values, `width` of them per row. */
static CUresult fill(CUstream stream, CUdeviceptr to, size_t pitch, uint32_t value,
		     unsigned int bytes, size_t width, size_t height)
{
	struct transfer transfer = {.to = {.side = SIDE_DEVICE, .address = to, .pitch = pitch},
				    .height = height,
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
