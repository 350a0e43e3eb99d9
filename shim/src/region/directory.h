/*
 * Where the limits are said: in /.gpuslice, where it exists in whatever state; elsewhere in
 * GPUSLICE_DIR; elsewhere in HAMi-core's environment variables.
 *
 * Decided once per process, and the only place that reads the environment for limits: what a tenant
 * sets there has no say in a container of ours.
 */
#ifndef VGPU_DIRECTORY_H
#define VGPU_DIRECTORY_H

#include "region/environment.h"
#include "vgpu/region.h"

#define VGPU_PATH_BYTES 256

/* VGPU_UNMANAGED where no limit was asked for. */
enum vgpu_result vgpu_directory_find(struct vgpu_error *error);

/* After vgpu_directory_find returned VGPU_OK. Limits from the environment have a region alone. */
void vgpu_directory_path(const char *file, char path[VGPU_PATH_BYTES]);

/* The limits, where the environment says them; else NULL. */
const struct vgpu_environment *vgpu_directory_environment(void);

/* Fill in `error`, where there is one, and return `result`. */
enum vgpu_result vgpu_fail(struct vgpu_error *error, enum vgpu_result result, int os_errno,
			   const char *path);

#endif
