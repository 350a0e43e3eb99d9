/*
 * The source of the limits: /.gpuslice, if it exists in any state. Otherwise it is GPUSLICE_DIR,
 * and without that HAMi-core's environment variables.
 *
 * The decision is made once per process. No other code reads the environment for limits. So a
 * tenant's variables have no effect in a container of gpuslice.
 */
#pragma once

#include "region/environment.h"
#include "vgpu/region.h"

#define VGPU_PATH_BYTES 256

/* Find the source. VGPU_UNMANAGED: no limit is set. */
enum vgpu_result vgpu_directory_find(struct vgpu_error *error);

/* The path of a file of the grant, after vgpu_directory_find returned VGPU_OK. With limits from the
 * environment there is only the region. */
void vgpu_directory_path(const char *file, char path[VGPU_PATH_BYTES]);

/* The limits from the environment, or NULL if they have another source. */
const struct vgpu_environment *vgpu_directory_environment(void);
