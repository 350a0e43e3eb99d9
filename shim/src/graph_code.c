/* See graph_code.h. */
#include "graph_code.h"

#include "first.h"
#include "local_memory.h"

/* Of kernels that could not be loaded ahead: by drivers before CUDA 12.4. */
#define CODE_OF_MANY_BYTES (INT64_C(16) << 30)

struct vgpu_needs vgpu_graph_needs_code(CUcontext home)
{
	struct vgpu_needs needs = vgpu_code_needs;
	struct vgpu_visit visit = vgpu_visit_context(home);
	int64_t local_bytes = vgpu_local_of_graphs();

	vgpu_visit_end(visit);
	if (!vgpu_all_are_ahead())
		needs.most_bytes = CODE_OF_MANY_BYTES;
	else if (!local_bytes)
		needs.takes = VGPU_TAKES_NO_REFUSAL;
	needs.most_bytes += local_bytes;
	return needs;
}
