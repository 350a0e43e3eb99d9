/*
 * What the driver reads in machine code (cubin): its target, its entry points with their
 * parameters and local memory, its variables, and what it takes of the GPU. The code itself is
 * skipped: a simulated launch takes time and computes nothing.
 *
 * Pure: bytes in, the same values out as from PTX.
 */
#ifndef SIMGPU_CUBIN_H
#define SIMGPU_CUBIN_H

#include "ptx.h"

/* PTX_NOT_PTX: an ELF file, and not of a GPU. PTX_MALFORMED: what it points to lies outside it.
 * A caller that knows no size trusts the file's own headers, as the driver does: SIZE_MAX. */
enum ptx_result cubin_parse(const void *image, size_t bytes, struct ptx **out);

#endif
