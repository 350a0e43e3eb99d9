/* See load.h. */
#include "load.h"

#define CODE_MOST_BYTES (INT64_C(1) << 30)

const struct vgpu_needs vgpu_code_needs = {0, CODE_MOST_BYTES, VGPU_TAKES_MAYBE, false};

static bool is_over(int card)
{
	return vgpu_used_bytes(card) > vgpu_limit_bytes(card);
}

/* One byte asks whether there is room at all, after all that a refusal is preceded by. */
static CUresult reserve(struct vgpu_load *load, const struct vgpu_needs *needs, bool alone)
{
	struct vgpu_place place = load->window.place;
	int64_t bytes = alone ? needs->known_bytes : needs->most_bytes;

	if (!bytes && (needs->takes == VGPU_TAKES_SURELY || is_over(place.card)))
		bytes = 1;
	return bytes ? vgpu_reserve_at(place, (uint64_t)bytes, &load->reservation) : CUDA_SUCCESS;
}

static CUresult begin(struct vgpu_load *load, const struct vgpu_needs *needs)
{
	struct vgpu_place place = {VGPU_CARD_UNMANAGED, 0};
	bool refusable = needs->takes != VGPU_TAKES_NO_REFUSAL;
	CUresult result = CUDA_SUCCESS;

	*load = (struct vgpu_load){.window.place = place,
				   .reservation.place = place,
				   .turn = VGPU_NO_TURN,
				   .most_bytes = needs->most_bytes};
	if (vgpu_measuring() || vgpu_place_current(&place) != CUDA_SUCCESS || place.card < 0)
		return CUDA_SUCCESS;
	/* Also to measure alone: another's load would be taken for ours. */
	(void)vgpu_turn_take(place.card, &load->turn, !needs->waited);
	vgpu_window_open(&load->window);
	if (load->window.open && refusable)
		result = reserve(load, needs, vgpu_turn_is_held(&load->turn));
	if (result != CUDA_SUCCESS) {
		vgpu_window_drop(&load->window);
		vgpu_turn_end(&load->turn);
	}
	return result;
}

CUresult vgpu_load_begin_in(struct vgpu_load *load, const struct vgpu_needs *needs, CUcontext home)
{
	struct vgpu_visit visit = vgpu_visit_context(home);
	CUresult result = begin(load, needs);

	load->home = home;
	vgpu_visit_end(visit);
	return result;
}

CUresult vgpu_load_begin(struct vgpu_load *load, const struct vgpu_needs *needs)
{
	return vgpu_load_begin_in(load, needs, NULL);
}

void vgpu_load_end(struct vgpu_load *load)
{
	struct vgpu_visit visit = vgpu_visit_context(load->home);
	int64_t reserved_bytes = (int64_t)load->reservation.bytes;
	struct vgpu_bounds bounds = {-reserved_bytes, load->most_bytes - reserved_bytes};

	if (reserved_bytes)
		vgpu_commit_measured(&load->reservation, load->window.place,
				     (uint64_t)reserved_bytes);
	vgpu_window_close(&load->window, bounds);
	vgpu_visit_end(visit);
	vgpu_turn_end(&load->turn);
}

CUresult vgpu_load_open(struct vgpu_window *window)
{
	struct vgpu_reservation room;
	CUresult result;

	vgpu_window_open(window);
	if (!window->open || !is_over(window->place.card))
		return CUDA_SUCCESS;
	result = vgpu_reserve_at(window->place, 1, &room);
	if (result == CUDA_SUCCESS)
		vgpu_cancel(&room);
	else
		vgpu_window_drop(window);
	return result;
}
