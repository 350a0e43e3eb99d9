/* Calls at which a driver may load the code of a graph's kernels, however many they are. */
#ifndef VGPU_GRAPH_CODE_H
#define VGPU_GRAPH_CODE_H

#include "execs.h"
#include "load.h"

struct vgpu_needs vgpu_graph_needs_code(CUcontext home);

/* `result = call`, if the call may be made; of code that belongs to a context, NULL: the current.
 */
#define VGPU_CALL_GRAPH(result, call) VGPU_CALL_GRAPH_IN(NULL, result, call)
#define VGPU_CALL_GRAPH_IN(home, result, call)                                                     \
	do {                                                                                       \
		const struct vgpu_needs vgpu_needs_ = vgpu_graph_needs_code(home);                 \
		struct vgpu_load vgpu_load_;                                                       \
		(result) = vgpu_load_begin_in(&vgpu_load_, &vgpu_needs_, home);                    \
		if ((result) != CUDA_SUCCESS)                                                      \
			break;                                                                     \
		(result) = (call);                                                                 \
		vgpu_load_end(&vgpu_load_);                                                        \
	} while (0)

/* The same for a graph of which it is known what it is made of. */
#define VGPU_CALL_GRAPH_OF(needs, result, call)                                                    \
	do {                                                                                       \
		if ((needs).runs_code)                                                             \
			VGPU_CALL_GRAPH(result, call);                                             \
		else                                                                               \
			(result) = (call);                                                         \
	} while (0)

#endif
