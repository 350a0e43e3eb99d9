/*
 * The file `region`: opened, checked against its grant, and mapped.
 *
 * The file's content is not trusted. Its layout is computed from the grant's number of GPUs. A file
 * whose header or size differs is refused before it is mapped.
 */
#pragma once

#include "os/file.h"
#include "region/counter.h"
#include "vgpu/region.h"

/* On VGPU_OK, *fd is open read-write and *file identifies the file. */
enum vgpu_result vgpu_region_open(const char *path, uint64_t grant_id, int gpu_count, int *fd,
				  struct vgpu_file *file, int *os_errno);

/* Make a region for limits from the environment, writable by all users. The file appears at `path`
 * only when it is complete. If another process makes the file first, return VGPU_OK too. */
enum vgpu_result vgpu_region_make(const char *path, int *os_errno);

/* Map a region that vgpu_region_open has checked. Fork children do not inherit the mapping. */
enum vgpu_result vgpu_region_map(int fd, int gpu_count, struct vgpu_view *view, int *os_errno);
