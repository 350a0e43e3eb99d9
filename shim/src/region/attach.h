/* The part of attaching that reserving uses. */
#pragma once

#include "region/process.h"
#include "vgpu/region.h"

/* Attach again after another process took this one for exited and took its slot. */
enum vgpu_result vgpu_attach_again(struct vgpu_process *process);
