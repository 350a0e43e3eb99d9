/*
 * The file `region`: opened, checked against its grant, mapped.
 *
 * The file's content is untrusted: the geometry is computed from the grant's number of GPUs, and a
 * file that differs, or is shorter, is refused before it is mapped.
 */
#pragma once

#include "os/file.h"
#include "region/counter.h"
#include "vgpu/region.h"

/* On VGPU_OK, *fd is open read-write and *file identifies the file. */
enum vgpu_result vgpu_region_open(const char *path, uint64_t grant_id, int gpu_count, int *fd,
				  struct vgpu_file *file, int *os_errno);

/*
 * Make a region for limits from the environment: complete or not at all, writable by all users.
 * Success also if another process was first.
 */
enum vgpu_result vgpu_region_make(const char *path, int *os_errno);

/* Map a region that vgpu_region_open accepted. Not inherited by fork children. */
enum vgpu_result vgpu_region_map(int fd, int gpu_count, struct vgpu_view *view, int *os_errno);
