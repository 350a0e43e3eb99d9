/* See device_memory.h. The process has one block size, which the driver reports at first use. If
 * the driver reports none, it is 2 MiB. In blocks smaller than SHARED_BYTES, as on the simulated
 * GPU in tests, allocations are charged separately. */
#include "charge/device_memory.h"

#include "charge/place.h"
#include "ledger/blocks.h"
#include "loader/hooks.h"
#include "vgpu/region.h"

#define LARGEST_BYTES  ((uint64_t)VGPU_BLOCK_UNITS * VGPU_BLOCK_UNIT_BYTES)
#define SHARED_BYTES   (UINT64_C(64) << 10)
#define SMALLEST_BYTES 512
/* If at least this much more fits the limit, a small allocation is made without reserving. */
#define FAR_BYTES (UINT64_C(256) << 20)

/* Value of `bytes` in a charge of vgpu_take_memory: the allocation lies in a shared block. */
#define IN_BLOCK UINT64_MAX

enum { MINIMUM = 0, PINNED = 1 };

static bool known_size;

/* After errors that may pass, such as CUDA_ERROR_NOT_INITIALIZED, the next call queries again. */
static void query_block_size(void)
{
	const CUmemAllocationProp prop = {.type = PINNED,
					  .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	size_t bytes = 0;
	CUresult result = real_cuMemGetAllocationGranularity(&bytes, &prop, MINIMUM);

	if (result == CUDA_SUCCESS && bytes >= SMALLEST_BYTES && bytes <= LARGEST_BYTES &&
	    (bytes & (bytes - 1)) == 0)
		__atomic_store_n(&vgpu_block_bytes, bytes, __ATOMIC_RELAXED);
	if (result == CUDA_SUCCESS || result == CUDA_ERROR_NOT_FOUND ||
	    result == CUDA_ERROR_NOT_SUPPORTED)
		__atomic_store_n(&known_size, true, __ATOMIC_RELEASE);
}

static uint64_t block_bytes(void)
{
	return __atomic_load_n(&vgpu_block_bytes, __ATOMIC_RELAXED);
}

uint64_t vgpu_whole_blocks(int gpu, uint64_t size_bytes)
{
	uint64_t mask;

	if (gpu >= 0 && !__atomic_load_n(&known_size, __ATOMIC_ACQUIRE))
		query_block_size();
	mask = block_bytes() - 1;
	/* A size that cannot be rounded up fits no limit. */
	return size_bytes > UINT64_MAX - mask ? UINT64_MAX : (size_bytes + mask) & ~mask;
}

/* Shift, because a division is slow. The block size is a power of two. */
static uint64_t block_of(uint64_t address)
{
	return address >> __builtin_ctzll(block_bytes());
}

static unsigned int unit_in(uint64_t address)
{
	return (unsigned int)((address & (block_bytes() - 1)) / VGPU_BLOCK_UNIT_BYTES);
}

static bool may_share(uint64_t size_bytes)
{
	return size_bytes < block_bytes() && block_bytes() >= SHARED_BYTES;
}

CUresult vgpu_reserve_memory(uint64_t size_bytes, struct vgpu_reservation *reservation)
{
	struct vgpu_place place;
	CUresult result = vgpu_place_current(&place);
	uint64_t bytes;

	if (result != CUDA_SUCCESS)
		return result;
	bytes = vgpu_whole_blocks(place.gpu, size_bytes);
	if (!may_share(size_bytes) || !vgpu_block_any(place.gpu))
		return vgpu_reserve_at(place, bytes, reservation);
	if (!vgpu_fits(place.gpu, FAR_BYTES) && vgpu_fits(place.gpu, bytes) &&
	    vgpu_reserve_at(place, bytes, reservation) == CUDA_SUCCESS)
		return CUDA_SUCCESS;
	*reservation = (struct vgpu_reservation){place, 0};
	return CUDA_SUCCESS;
}

/* Keep an allocation that spans several blocks, or fills one. */
static CUresult keep_own(struct vgpu_reservation *reservation, uint64_t address,
			 uint64_t size_bytes)
{
	uint64_t blocks = block_of(address + size_bytes - 1) - block_of(address) + 1;
	CUresult result = vgpu_settle(reservation, blocks * block_bytes());

	if (result != CUDA_SUCCESS)
		return result;
	reservation->bytes = blocks * block_bytes();
	return vgpu_commit(reservation, VGPU_KIND_MEMORY, address, 0);
}

/* Keep an allocation that was made without a reservation, in a block that is new to the process. */
static CUresult keep_at_the_edge(struct vgpu_reservation *reservation, uint64_t address,
				 uint64_t size_bytes)
{
	CUresult result = vgpu_reserve_at(reservation->place, block_bytes(), reservation);

	if (result == CUDA_SUCCESS)
		return vgpu_keep_memory(reservation, address, size_bytes);
	reservation->bytes = 0;
	return result;
}

CUresult vgpu_keep_memory(struct vgpu_reservation *reservation, uint64_t address,
			  uint64_t size_bytes)
{
	struct vgpu_charge owner = {.gpu = reservation->place.gpu,
				    .context = reservation->place.context};
	struct vgpu_charge replaced;
	bool reserved = reservation->bytes != 0;

	if (owner.gpu < 0)
		return CUDA_SUCCESS;
	if (!may_share(size_bytes) || block_of(address + size_bytes - 1) != block_of(address))
		return keep_own(reservation, address, size_bytes);
	switch (
	    vgpu_block_enter(block_of(address), unit_in(address), &owner, !reserved, &replaced)) {
	case VGPU_BLOCK_KNOWN:
		vgpu_cancel(reservation);
		return CUDA_SUCCESS;
	case VGPU_BLOCK_NEW:
		if (replaced.gpu >= 0)
			vgpu_refund(replaced.gpu, block_bytes());
		return reserved ? vgpu_settle(reservation, block_bytes())
				: keep_at_the_edge(reservation, address, size_bytes);
	case VGPU_BLOCK_NO_MEMORY:
		break;
	}
	return CUDA_ERROR_OUT_OF_MEMORY;
}

bool vgpu_take_memory(uint64_t address, struct vgpu_charge *charge)
{
	if (!vgpu_block_take(block_of(address), unit_in(address), charge))
		return false;
	charge->bytes = IN_BLOCK;
	return true;
}

bool vgpu_release_memory(uint64_t address, const struct vgpu_charge *charge, bool freed)
{
	if (charge->bytes != IN_BLOCK)
		return false;
	if (vgpu_block_release(block_of(address), unit_in(address), charge, freed))
		vgpu_refund(charge->gpu, block_bytes());
	return true;
}

static uint64_t min_bytes(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

struct vgpu_memory_view vgpu_view_of(int gpu, uint64_t total_bytes, uint64_t free_bytes)
{
	struct vgpu_memory_view view = {0};

	if (gpu < 0)
		return view;
	uint64_t limit_bytes = vgpu_limit_bytes(gpu);
	uint64_t used_bytes = vgpu_used_bytes(gpu);
	uint64_t left_bytes = used_bytes < limit_bytes ? limit_bytes - used_bytes : 0;
	view.total_bytes = min_bytes(limit_bytes, total_bytes);
	view.used_bytes = min_bytes(used_bytes, view.total_bytes);
	/* Drivers allocate whole blocks, so a rest smaller than a block is not free. */
	view.free_bytes = min_bytes(left_bytes & ~(block_bytes() - 1), free_bytes);
	return view;
}
