/*
 * Reads machine code (cubin) as the driver does: its target, its entry points with their parameters
 * and local memory, its variables, and its memory on the GPU. The code itself is skipped: a
 * simulated launch takes time and computes nothing.
 *
 * Pure: bytes in, the same values out as from PTX.
 */
#ifndef SIMGPU_CUBIN_H
#define SIMGPU_CUBIN_H

#include "module/ptx.h"

/* PTX_NOT_PTX: an ELF file, but not of a GPU. PTX_MALFORMED: an offset lies outside it. With an
 * unknown size (SIZE_MAX) the file's own headers are trusted, as by the driver. */
enum ptx_result cubin_parse(const void *image, size_t bytes, struct ptx **out);

#endif
