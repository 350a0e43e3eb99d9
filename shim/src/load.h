/*
 * Calls that may bring code or local memory onto the card: measured, and refused beforehand.
 *
 * What they take is known only afterwards, and most of it cannot be undone. So they are made one at
 * a time in a container (turn.h), with what is known of them reserved, and none while the container
 * is over its limit: it is over by what one of them took at most. Who has waited for his turn in
 * vain goes ahead where the most that the call can take fits, and is refused elsewhere.
 */
#ifndef VGPU_LOAD_H
#define VGPU_LOAD_H

#include "admission.h"
#include "measure.h"
#include "turn.h"
#include "visit.h"

struct vgpu_needs {
	int64_t known_bytes; /* reserved */
	int64_t most_bytes;
	enum {
		VGPU_TAKES_MAYBE,     /* nobody can tell */
		VGPU_TAKES_SURELY,    /* something: not at the limit either */
		VGPU_TAKES_NO_REFUSAL /* nothing that is known of: measured alone */
	} takes;
	bool waited; /* in vain, for another turn of the same call: not once more */
};

/* A module's code and variables, which no call tells beforehand. */
extern const struct vgpu_needs vgpu_code_needs;

struct vgpu_load {
	struct vgpu_window window;
	struct vgpu_reservation reservation;
	struct vgpu_turn turn;
	int64_t most_bytes;
	CUcontext home;
};

/* In the current context, or in the one that the code belongs to: it is measured and charged there,
 * and the call between is made in the current one all the same; NULL: that is it. What is not
 * CUDA_SUCCESS the wrapper returns; else end must follow. */
CUresult vgpu_load_begin(struct vgpu_load *load, const struct vgpu_needs *needs);
CUresult vgpu_load_begin_in(struct vgpu_load *load, const struct vgpu_needs *needs, CUcontext home);
void vgpu_load_end(struct vgpu_load *load);

/* `result = call`, if the call may be made. */
#define VGPU_CALL_LOADING(result, call) VGPU_CALL_LOADING_IN(NULL, result, call)
#define VGPU_CALL_LOADING_IN(home, result, call)                                                   \
	do {                                                                                       \
		struct vgpu_load vgpu_load_;                                                       \
		(result) = vgpu_load_begin_in(&vgpu_load_, &vgpu_code_needs, home);                \
		if ((result) != CUDA_SUCCESS)                                                      \
			break;                                                                     \
		(result) = (call);                                                                 \
		vgpu_load_end(&vgpu_load_);                                                        \
	} while (0)

/*
 * For what can be undone, and may take long: many at a time. Open the window, but where the
 * container is over its limit: then CUDA_ERROR_OUT_OF_MEMORY, and nothing is open.
 */
CUresult vgpu_load_open(struct vgpu_window *window);

#endif
