/*
 * Copies: data really moves, when the copy is submitted; it takes no time on the card.
 *
 * Device addresses are checked to their last byte; host addresses are the program's affair. A
 * synchronous copy first waits for what its stream is still doing.
 */
#include "vmm.h"

#include <string.h>

#define PITCH_MAX_BYTES 2147483647 /* CU_DEVICE_ATTRIBUTE_MAX_PITCH */

enum side { SIDE_ANY, SIDE_HOST, SIDE_DEVICE };

/* What every copy has in common: a current context, a stream, and whether to wait for it. */
struct submission {
	CUstream stream;
	bool wait;
};

static const struct submission synchronous = {.wait = true};

static bool reserved(const struct arena *arena, uint64_t address)
{
	return arena->base && address >= arena->base &&
	       (address - arena->base) >> 21 < arena->blocks;
}

static bool span_is_good(uint64_t address, uint64_t bytes, enum side side)
{
	struct device *device;
	struct range *range = memory_find(address, &device);

	if (range)
		return side != SIDE_HOST && bytes <= range->bytes - (address - range->base);
	if (vmm_reserved(address))
		return side != SIDE_HOST && vmm_accessible(address, bytes);
	if (side == SIDE_DEVICE) {
		void *base;
		size_t whole;

		/* Pinned host memory is a device address too. */
		return host_find((void *)(uintptr_t)address, &base, &whole) &&
		       bytes <= whole - (address - (uintptr_t)base);
	}
	for (int i = 0; i < driver.devices; i++)
		if (reserved(&driver.device[i].arena, address) ||
		    reserved(&driver.device[i].low, address))
			return false;
	return address != 0;
}

/* Enters, finds the stream, and says through `ready_ns` when it is free. */
static CUresult begin(const struct submission *how, uint64_t *ready_ns, struct sim_link **link)
{
	struct stream *stream;
	CUresult result = driver_enter();

	if (result != CUDA_SUCCESS)
		return result;
	result = stream_get(how->stream, &stream);
	if (result == CUDA_SUCCESS)
		result = capture_allows_on(stream);
	if (result != CUDA_SUCCESS)
		return driver_leave(result);
	*ready_ns = how->wait ? stream_ready_ns(stream) : 0;
	*link = stream->context->device->link;
	return CUDA_SUCCESS;
}

static CUresult finish(const struct submission *how, uint64_t ready_ns, struct sim_link *link)
{
	driver_unlock();
	wait_until_ns(ready_ns);
	return how->wait ? device_alive(link) : CUDA_SUCCESS;
}

struct rows {
	uint64_t to, from;
	size_t to_pitch, from_pitch, width, height;
};

/* From the first byte of the first row to the last of the last; false where no address space has
 * that much. There is at least one row. */
static bool extent(size_t pitch, size_t width, size_t height, uint64_t *bytes)
{
	return !__builtin_mul_overflow(height - 1, pitch, bytes) &&
	       !__builtin_add_overflow(*bytes, width, bytes);
}

static CUresult copy_rows(struct submission how, const struct rows *rows, enum side to,
			  enum side from)
{
	uint64_t ready_ns;
	struct sim_link *link;
	CUresult result = begin(&how, &ready_ns, &link);

	if (result != CUDA_SUCCESS)
		return result;
	if (rows->width && rows->height) {
		uint64_t written, taken;

		if (!extent(rows->to_pitch, rows->width, rows->height, &written) ||
		    !extent(rows->from_pitch, rows->width, rows->height, &taken) ||
		    !span_is_good(rows->to, written, to) || !span_is_good(rows->from, taken, from))
			return driver_leave(CUDA_ERROR_INVALID_VALUE);
	}
	result = finish(&how, ready_ns, link);
	for (size_t y = 0; result == CUDA_SUCCESS && y < rows->height && rows->width; y++)
		memmove((void *)(uintptr_t)(rows->to + y * rows->to_pitch),
			(const void *)(uintptr_t)(rows->from + y * rows->from_pitch), rows->width);
	return result;
}

static CUresult copy(struct submission how, uint64_t to, enum side to_side, uint64_t from,
		     enum side from_side, size_t bytes)
{
	struct rows rows = {.to = to, .from = from, .width = bytes, .height = 1};

	return copy_rows(how, &rows, to_side, from_side);
}

static struct submission on(CUstream stream)
{
	return (struct submission){.stream = stream};
}

static uint64_t address_of(const void *pointer)
{
	return (uint64_t)(uintptr_t)pointer;
}

CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
	return copy(synchronous, to, SIDE_ANY, from, SIDE_ANY, bytes);
}

CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
	return copy(on(stream), to, SIDE_ANY, from, SIDE_ANY, bytes);
}

CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes)
{
	return copy(synchronous, to, SIDE_DEVICE, address_of(from), SIDE_ANY, bytes);
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes, CUstream stream)
{
	return copy(on(stream), to, SIDE_DEVICE, address_of(from), SIDE_ANY, bytes);
}

CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes)
{
	return copy(synchronous, address_of(to), SIDE_ANY, from, SIDE_DEVICE, bytes);
}

CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, CUstream stream)
{
	return copy(on(stream), address_of(to), SIDE_ANY, from, SIDE_DEVICE, bytes);
}

CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
	return copy(synchronous, to, SIDE_DEVICE, from, SIDE_DEVICE, bytes);
}

CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
	return copy(on(stream), to, SIDE_DEVICE, from, SIDE_DEVICE, bytes);
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

/* One side of a 2D copy: the address of its first byte. Arrays are not simulated. */
static CUresult side_of(int type, const void *host, CUdeviceptr device, uint64_t *address,
			enum side *side)
{
	if (type == CU_MEMORYTYPE_ARRAY)
		return CUDA_ERROR_NOT_SUPPORTED;
	if (type < CU_MEMORYTYPE_HOST || type > CU_MEMORYTYPE_UNIFIED)
		return CUDA_ERROR_INVALID_VALUE;
	*address = type == CU_MEMORYTYPE_HOST ? address_of(host) : device;
	*side = type == CU_MEMORYTYPE_DEVICE ? SIDE_DEVICE : SIDE_ANY;
	return CUDA_SUCCESS;
}

/* Moves `*address` from a rectangle's origin to its first byte; false where there is none. */
static bool enter_rectangle(uint64_t *address, size_t x, size_t y, size_t pitch, size_t width)
{
	uint64_t end, offset;

	return *address && pitch <= PITCH_MAX_BYTES && !__builtin_add_overflow(x, width, &end) &&
	       end <= pitch && !__builtin_mul_overflow(y, pitch, &offset) &&
	       !__builtin_add_overflow(offset, x, &offset) &&
	       !__builtin_add_overflow(*address, offset, address);
}

static CUresult copy_2d(struct submission how, const CUDA_MEMCPY2D *given)
{
	struct rows rows;
	enum side to, from;
	CUresult result;

	if (!given)
		return CUDA_ERROR_INVALID_VALUE;
	rows = (struct rows){.to_pitch = given->dstPitch ? given->dstPitch : given->WidthInBytes,
			     .from_pitch = given->srcPitch ? given->srcPitch : given->WidthInBytes,
			     .width = given->WidthInBytes,
			     .height = given->Height};
	result = side_of(given->dstMemoryType, given->dstHost, given->dstDevice, &rows.to, &to);
	if (result == CUDA_SUCCESS)
		result = side_of(given->srcMemoryType, given->srcHost, given->srcDevice, &rows.from,
				 &from);
	if (result != CUDA_SUCCESS)
		return result;
	if (!enter_rectangle(&rows.to, given->dstXInBytes, given->dstY, rows.to_pitch,
			     rows.width) ||
	    !enter_rectangle(&rows.from, given->srcXInBytes, given->srcY, rows.from_pitch,
			     rows.width))
		return CUDA_ERROR_INVALID_VALUE;
	return copy_rows(how, &rows, to, from);
}

CUresult cuMemcpy2D_v2(const CUDA_MEMCPY2D *given)
{
	return copy_2d(synchronous, given);
}

CUresult cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D *given)
{
	return copy_2d(synchronous, given);
}

CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *given, CUstream stream)
{
	return copy_2d(on(stream), given);
}

/* `bytes` wide values, `width` of them per row. */
static CUresult fill(struct submission how, const struct rows *rows, uint32_t value, size_t bytes)
{
	uint64_t ready_ns;
	struct sim_link *link;
	CUresult result = begin(&how, &ready_ns, &link);
	size_t row = rows->width * bytes;
	uint64_t written;

	if (result != CUDA_SUCCESS)
		return result;
	if (rows->to % bytes || rows->width > SIZE_MAX / bytes ||
	    (rows->height > 1 && (rows->to_pitch % bytes || rows->to_pitch < row)))
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	if (row && rows->height &&
	    (!extent(rows->to_pitch, row, rows->height, &written) ||
	     !span_is_good(rows->to, written, SIDE_DEVICE)))
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	driver_unlock();
	for (size_t y = 0; y < rows->height; y++) {
		char *at = (char *)(uintptr_t)(rows->to + y * rows->to_pitch);

		if (bytes == 1)
			memset(at, (int)value, row);
		for (size_t x = 0; bytes > 1 && x < row; x += bytes)
			memcpy(at + x, &value, bytes);
	}
	return CUDA_SUCCESS;
}

static CUresult fill_line(CUstream stream, CUdeviceptr to, uint32_t value, size_t bytes,
			  size_t count)
{
	struct rows rows = {.to = to, .width = count, .height = 1};

	return fill(on(stream), &rows, value, bytes);
}

static CUresult fill_2d(CUstream stream, CUdeviceptr to, size_t pitch, uint32_t value, size_t bytes,
			size_t width, size_t height)
{
	struct rows rows = {.to = to, .to_pitch = pitch, .width = width, .height = height};

	return fill(on(stream), &rows, value, bytes);
}

/* The three widths, each as a line and as rows, each with a stream and without. */
#define FILL(bits, type)                                                                           \
	CUresult cuMemsetD##bits##_v2(CUdeviceptr to, type value, size_t count)                    \
	{                                                                                          \
		return fill_line(NULL, to, value, bits / 8, count);                                \
	}                                                                                          \
	CUresult cuMemsetD##bits##Async(CUdeviceptr to, type value, size_t count, CUstream stream) \
	{                                                                                          \
		return fill_line(stream, to, value, bits / 8, count);                              \
	}                                                                                          \
	CUresult cuMemsetD2D##bits##_v2(CUdeviceptr to, size_t pitch, type value, size_t width,    \
					size_t height)                                             \
	{                                                                                          \
		return fill_2d(NULL, to, pitch, value, bits / 8, width, height);                   \
	}                                                                                          \
	CUresult cuMemsetD2D##bits##Async(CUdeviceptr to, size_t pitch, type value, size_t width,  \
					  size_t height, CUstream stream)                          \
	{                                                                                          \
		return fill_2d(stream, to, pitch, value, bits / 8, width, height);                 \
	}

FILL(8, unsigned char)
FILL(16, unsigned short)
FILL(32, unsigned int)
