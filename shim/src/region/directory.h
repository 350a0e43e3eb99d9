/*
 * The source of the limits. It is the directory /.gpuslice if that exists, even if unusable.
 * Otherwise it is the directory that GPUSLICE_DIR names. Without either it is HAMi-core's
 * environment variables.
 *
 * The decision is made once per process. No other code reads the environment for limits. So a
 * tenant's variables have no effect in a container of gpuslice.
 */
#pragma once

#include "region/environment.h"
#include "vgpu/region.h"

#define VGPU_PATH_BYTES 256

/* Find the source of the limits. VGPU_UNMANAGED: no limit is set. */
enum vgpu_result vgpu_directory_find(struct vgpu_error *error);

/* The path of a file of the grant. Call it after vgpu_directory_find returned VGPU_OK. If the
 * limits are from the environment, it is always the region's path. */
void vgpu_directory_path(const char *file, char path[VGPU_PATH_BYTES]);

/* The limits from the environment, or NULL if they have another source. */
const struct vgpu_environment *vgpu_directory_environment(void);
