/*
 * Images: the sources of a program's code. PTX text or machine code (cubin), in memory or in a
 * file. If it does not run on the GPU, its names are available, and only its use fails.
 */
#include "module/module.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "module/cubin.h"

#define NEWEST_PTX	90 /* PTX ISA 9.0, of CUDA 13.0 */
#define IMAGE_MAX_BYTES (64u << 20)

enum {
	JIT_WALL_TIME = 2,
	JIT_INFO_LOG = 3,
	JIT_INFO_LOG_BYTES = 4,
	JIT_ERROR_LOG = 5,
	JIT_ERROR_LOG_BYTES = 6,
};

static const uint8_t cubin_magic[] = {0x7f, 'E', 'L', 'F'};

static unsigned int capability_of(const struct device *device)
{
	return 10 * device->gpu->capability_major + device->gpu->capability_minor;
}

static CUresult read_cubin(const void *image, size_t bytes, struct ptx **ptx)
{
	switch (cubin_parse(image, bytes, ptx)) {
	case PTX_OK:
		return CUDA_SUCCESS;
	case PTX_NOT_PTX:
		return CUDA_ERROR_NO_BINARY_FOR_GPU;
	case PTX_NO_MEMORY:
		return CUDA_ERROR_OUT_OF_MEMORY;
	default:
		return CUDA_ERROR_INVALID_IMAGE;
	}
}

static CUresult read_text(const char *text, struct ptx **ptx)
{
	static const CUresult results[] = {
	    [PTX_OK] = CUDA_SUCCESS,
	    [PTX_NOT_PTX] = CUDA_ERROR_INVALID_IMAGE,
	    [PTX_MALFORMED] = CUDA_ERROR_INVALID_PTX,
	    [PTX_NO_MEMORY] = CUDA_ERROR_OUT_OF_MEMORY,
	};
	CUresult result = results[ptx_parse(text, ptx)];

	if (result == CUDA_SUCCESS && (*ptx)->version > NEWEST_PTX) {
		ptx_release(*ptx);
		result = CUDA_ERROR_UNSUPPORTED_PTX_VERSION;
	}
	return result;
}

/* The size is known for an image from a file; in memory its own headers are trusted. */
static CUresult read_image(const void *image, size_t bytes, struct ptx **ptx)
{
	if (!image)
		return CUDA_ERROR_INVALID_VALUE;
	return memcmp(image, cubin_magic, sizeof(cubin_magic)) == 0 ? read_cubin(image, bytes, ptx)
								    : read_text(image, ptx);
}

CUresult image_read(const void *image, struct ptx **ptx)
{
	return read_image(image, SIZE_MAX, ptx);
}

CUresult image_read_file(const void *path, struct ptx **ptx)
{
	CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
	char *text = NULL;
	size_t bytes = 0;
	FILE *file;

	if (!path)
		return CUDA_ERROR_INVALID_VALUE;
	file = fopen(path, "re");
	if (!file)
		return CUDA_ERROR_FILE_NOT_FOUND;
	for (size_t cap = 1 << 16; cap <= IMAGE_MAX_BYTES; cap *= 2) {
		char *grown = realloc(text, cap);

		if (!grown)
			break;
		text = grown;
		bytes += fread(text + bytes, 1, cap - bytes - 1, file);
		if (bytes < cap - 1) {
			/* At least four bytes, for the magic numbers. */
			memset(text + bytes, 0, bytes < 4 ? 4 - bytes : 1);
			result = read_image(text, bytes, ptx);
			break;
		}
	}
	fclose(file);
	free(text);
	return result;
}

/* Position of an option's value, or NULL if it is not given. */
static void **option(int wanted, unsigned int count, const int *options, void **values)
{
	for (unsigned int i = 0; i < count; i++)
		if (options[i] == wanted)
			return &values[i];
	return NULL;
}

void image_options(unsigned int count, const int *options, void **values)
{
	static const int logs[][2] = {{JIT_INFO_LOG, JIT_INFO_LOG_BYTES},
				      {JIT_ERROR_LOG, JIT_ERROR_LOG_BYTES}};
	void **seconds = option(JIT_WALL_TIME, count, options, values);

	if (seconds)
		*seconds = NULL;
	for (int i = 0; i < 2; i++) {
		void **text = option(logs[i][0], count, options, values);
		void **bytes = option(logs[i][1], count, options, values);

		if (text && *text && bytes && *bytes)
			*(char *)*text = '\0';
		/* In: the size of the buffer. Out: the bytes written to it. */
		if (bytes)
			*bytes = NULL;
	}
}

CUresult image_fits(const struct ptx *ptx, const struct device *device)
{
	unsigned int capability = capability_of(device);

	/* Text is compiled for any newer GPU; code runs on newer ones of its generation. */
	if (!ptx->machine_code)
		return ptx->target <= capability ? CUDA_SUCCESS : CUDA_ERROR_INVALID_PTX;
	return ptx->target <= capability && ptx->target / 10 == capability / 10
		   ? CUDA_SUCCESS
		   : CUDA_ERROR_NO_BINARY_FOR_GPU;
}
