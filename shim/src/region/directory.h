/*
 * The source of the limits: /.gpuslice, if it exists in whatever state; else GPUSLICE_DIR; else
 * HAMi-core's environment variables.
 *
 * Decided once per process, and the only place that reads the environment for limits: a tenant's
 * variables have no effect in a container of gpuslice.
 */
#pragma once

#include "region/environment.h"
#include "vgpu/region.h"

#define VGPU_PATH_BYTES 256

/* VGPU_UNMANAGED if no limit is set. */
enum vgpu_result vgpu_directory_find(struct vgpu_error *error);

/* After vgpu_directory_find returned VGPU_OK. Limits from the environment have a region alone. */
void vgpu_directory_path(const char *file, char path[VGPU_PATH_BYTES]);

/* The limits, if the environment sets them; else NULL. */
const struct vgpu_environment *vgpu_directory_environment(void);
