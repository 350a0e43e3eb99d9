/*
 * See claims.h. Claims are in one hash table, by kind and key. A thread that makes or ends claims
 * keeps them in a list outside of the table, where no other thread finds them. The operations that
 * scan all claims are rare: retaining a handle by address, unbinding, and the end of an array. No
 * thread holds the table's lock while it refunds a charge.
 */
#include "charge/claims.h"

#include "os/fork_wiped.h"
#include "os/lock.h"
#include "os/step.h"
#include "vgpu/region.h"

enum { BUCKET_BITS = 14, ANY_DEVICE = VGPU_MULTICAST };

struct claim {
	struct vgpu_claim_to to;
	uint32_t next; /* next claim in the hash bucket, in a list, or in the list of free claims */
	uint32_t memory; /* 0: free */
	bool in_bucket;
};

struct memory {
	struct vgpu_physical is;
	uint32_t claims; /* 0: free */
	uint32_t next_free;
};

/* The numbers of claims and memories begin at 1. claims_used and memories_used are the highest
 * numbers given so far. claims_free and memories_free begin the lists of free ones. */
struct table {
	struct vgpu_fork_wiped wiped;
	struct vgpu_lock lock;
	uint32_t claims_used, claims_free, memories_used, memories_free;
	uint32_t kinds[VGPU_CLAIM_KINDS]; /* number of claims of each kind in the hash table */
	uint32_t bucket[1 << BUCKET_BITS];
	struct claim claim[VGPU_CLAIMS];
	struct memory memory[VGPU_CLAIMS];
};

static const struct vgpu_physical nothing = {.charge = {.place = {.gpu = VGPU_GPU_UNMANAGED}}};

static struct vgpu_fork_wiped *pages;
bool vgpu_any_view; /* whether there has been a view */

/* The locked table. NULL: nothing was ever claimed, or the lock is not available. */
static struct table *enter(void)
{
	struct table *t = NULL;

	if (__atomic_load_n(&pages, __ATOMIC_ACQUIRE))
		t = vgpu_fork_wiped_pages(&pages, sizeof(struct table));
	return t && vgpu_lock(&t->lock) ? t : NULL;
}

static uint32_t *bucket_of(struct table *t, enum vgpu_claim_kind kind, uint64_t key)
{
	uint64_t spread = (key + ((uint64_t)kind << 56)) * UINT64_C(0x9e3779b97f4a7c15);

	return &t->bucket[spread >> (64 - BUCKET_BITS)];
}

/* The number of a claim of that kind and key. 0: there is none. */
static uint32_t find(struct table *t, enum vgpu_claim_kind kind, uint64_t key)
{
	uint32_t at = *bucket_of(t, kind, key);

	while (at && (t->claim[at].to.kind != kind || t->claim[at].to.key != key))
		at = t->claim[at].next;
	return at;
}

static void put_in_bucket(struct table *t, uint32_t number)
{
	struct claim *claim = &t->claim[number];
	uint32_t *bucket = bucket_of(t, claim->to.kind, claim->to.key);

	claim->next = *bucket;
	claim->in_bucket = true;
	*bucket = number;
	t->kinds[claim->to.kind]++;
}

/* Move a claim from its bucket to the head of the list. */
static void take_from_bucket(struct table *t, uint32_t number, uint32_t *list)
{
	struct claim *claim = &t->claim[number];
	uint32_t *link = bucket_of(t, claim->to.kind, claim->to.key);

	while (*link != number)
		link = &t->claim[*link].next;
	*link = claim->next;
	claim->next = *list;
	claim->in_bucket = false;
	*list = number;
	t->kinds[claim->to.kind]--;
}

/* Make a claim on the memory, and put it at the head of the list. False: the table is full. */
static bool add(struct table *t, uint32_t memory, uint32_t *list)
{
	uint32_t number = t->claims_free;

	if (number)
		t->claims_free = t->claim[number].next;
	else if (t->claims_used + 1 < VGPU_CLAIMS)
		number = ++t->claims_used;
	else
		return false;
	t->claim[number] = (struct claim){.memory = memory, .next = *list};
	t->memory[memory].claims++;
	*list = number;
	return true;
}

/* Which claims to take. Mappings and bindings must be within `extent` bytes from `key`. Claims of
 * other kinds must be of `owner`. If that is 0, they must be of the context in `extent`. */
struct wanted {
	enum vgpu_claim_kind kind;
	uint64_t key, extent, owner;
	CUdevice device;
};

static bool is_wanted(const struct table *t, const struct claim *claim, const struct wanted *wanted)
{
	const struct vgpu_claim_to *to = &claim->to;
	uint64_t offset = to->key - wanted->key;

	if (!claim->in_bucket || to->kind != wanted->kind)
		return false;
	if (to->kind == VGPU_CLAIM_MAPPING)
		return offset < wanted->extent && to->extent <= wanted->extent - offset;
	if (to->kind == VGPU_CLAIM_BINDING)
		return to->owner == wanted->owner && offset < wanted->extent &&
		       (wanted->device == ANY_DEVICE ||
			t->memory[claim->memory].is.device == wanted->device);
	return wanted->owner ? to->owner == wanted->owner : to->extent == wanted->extent;
}

static void take_wanted(struct table *t, const struct wanted *wanted, uint32_t *list)
{
	for (uint32_t i = 1; t->kinds[wanted->kind] && i <= t->claims_used; i++)
		if (is_wanted(t, &t->claim[i], wanted))
			take_from_bucket(t, i, list);
}

static uint32_t take_all(struct wanted wanted)
{
	struct table *t = enter();
	uint32_t list = 0;

	if (t) {
		take_wanted(t, &wanted, &list);
		vgpu_unlock(&t->lock);
	}
	return list;
}

/* Drop one claim. If the memory has no other claim, free the memory's entry and return its content,
 * whose charge the caller ends. If the entry is a multicast object, add its bindings to
 * `orphans`. */
static struct vgpu_physical drop(struct table *t, uint32_t number, uint32_t *orphans)
{
	uint32_t memory = t->claim[number].memory;
	const struct wanted bound = {VGPU_CLAIM_BINDING, 0, UINT64_MAX, memory, ANY_DEVICE};
	struct vgpu_physical ended;

	t->claim[number] = (struct claim){.next = t->claims_free};
	t->claims_free = number;
	if (--t->memory[memory].claims)
		return nothing;
	ended = t->memory[memory].is;
	if (ended.device == VGPU_MULTICAST)
		take_wanted(t, &bound, orphans);
	t->memory[memory] = (struct memory){.next_free = t->memories_free};
	t->memories_free = memory;
	return ended;
}

/* Drop the claims of a list, without the table's lock during refunds. */
static void drop_list(uint32_t list)
{
	struct vgpu_physical ended;
	struct table *t;

	while (list && (t = enter())) {
		uint32_t number = list;

		list = t->claim[number].next;
		ended = drop(t, number, &list);
		vgpu_unlock(&t->lock);
		vgpu_cancel(&ended.charge);
		vgpu_shared_leave(ended.hold);
	}
}

uint32_t vgpu_claim_new(const struct vgpu_physical *is)
{
	struct table *t = vgpu_fork_wiped_pages(&pages, sizeof(struct table));
	uint32_t memory, claim = 0;

	if (!t || !vgpu_lock(&t->lock))
		return 0;
	memory = t->memories_free ? t->memories_free : t->memories_used + 1;
	if (add(t, memory, &claim)) {
		t->memories_used += !t->memories_free;
		t->memories_free = t->memory[memory].next_free;
		t->memory[memory].is = *is;
	}
	vgpu_unlock(&t->lock);
	return claim;
}

CUresult vgpu_claim_reserved(struct vgpu_place place, uint64_t bytes, struct vgpu_physical *memory,
			     uint32_t *claim)
{
	CUresult result = vgpu_reserve_at(place, bytes, &memory->charge);

	if (result != CUDA_SUCCESS)
		return result;
	*claim = vgpu_claim_new(memory);
	if (*claim)
		return CUDA_SUCCESS;
	vgpu_cancel(&memory->charge);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

bool vgpu_claim_known(enum vgpu_claim_kind kind, uint64_t key, uint32_t *claim)
{
	struct table *t = enter();
	uint32_t known;

	*claim = 0;
	if (!t)
		return !__atomic_load_n(&pages, __ATOMIC_ACQUIRE);
	known = find(t, kind, key);
	known = known && !add(t, t->claim[known].memory, claim);
	vgpu_unlock(&t->lock);
	return !known;
}

/* The mapping that begins at the address, or else any mapping that contains it. */
static const struct claim *mapping_at(struct table *t, uint64_t address)
{
	uint32_t number = find(t, VGPU_CLAIM_MAPPING, address);

	for (uint32_t i = 1; !number && i <= t->claims_used; i++)
		if (t->claim[i].in_bucket && t->claim[i].to.kind == VGPU_CLAIM_MAPPING &&
		    address - t->claim[i].to.key < t->claim[i].to.extent)
			number = i;
	return number ? &t->claim[number] : NULL;
}

bool vgpu_claim_range(uint64_t address, uint64_t bytes, uint32_t *list)
{
	struct table *t = enter();
	const struct claim *mapping;
	uint64_t offset = 0;
	bool fits = true;

	*list = 0;
	if (!t)
		return !__atomic_load_n(&pages, __ATOMIC_ACQUIRE);
	while (offset < bytes && fits && (mapping = mapping_at(t, address + offset))) {
		fits = add(t, mapping->memory, list);
		offset = mapping->to.key + mapping->to.extent - address;
	}
	vgpu_unlock(&t->lock);
	if (!fits) {
		drop_list(*list);
		*list = 0;
	}
	return fits;
}

/* No other thread frees the memory's entry, because this thread has a claim on it. */
struct vgpu_physical vgpu_claimed_physical(uint32_t claim)
{
	struct table *t = claim ? enter() : NULL;
	struct vgpu_physical is = t ? t->memory[t->claim[claim].memory].is : nothing;

	if (t)
		vgpu_unlock(&t->lock);
	return is;
}

bool vgpu_claimed_share(uint32_t claim, vgpu_hold hold, uint64_t key)
{
	struct table *t = enter();
	struct vgpu_physical *is;
	bool first;

	if (!t)
		return false;
	is = &t->memory[t->claim[claim].memory].is;
	first = !is->hold;
	if (first)
		*is = (struct vgpu_physical){.charge.place = is->charge.place,
					     .device = is->device,
					     .hold = hold,
					     .key = key};
	vgpu_unlock(&t->lock);
	return first;
}

void vgpu_claim_end(uint32_t list, CUresult driver_result, struct vgpu_claim_to to)
{
	uint32_t stale = 0, number;
	struct table *t;

	VGPU_AT(HOLD_CALLED);
	if (driver_result != CUDA_SUCCESS)
		drop_list(list);
	t = driver_result == CUDA_SUCCESS ? enter() : NULL;
	if (!t)
		return;
	while (list && !to.one_of_several && (number = find(t, to.kind, to.key)))
		take_from_bucket(t, number, &stale);
	if (to.kind == VGPU_CLAIM_BINDING)
		to.owner = t->claim[find(t, VGPU_CLAIM_HANDLE, to.owner)].memory;
	if (to.kind == VGPU_CLAIM_BINDING && t->memory[to.owner].is.foreign) { /* an import */
		t->memory[to.owner].is = nothing;
		t->memory[to.owner].is.device = VGPU_MULTICAST;
	}
	if (to.kind == VGPU_CLAIM_VIEW && list)
		__atomic_store_n(&vgpu_any_view, true, __ATOMIC_RELAXED);
	while ((number = list)) {
		list = t->claim[number].next;
		t->claim[number].to = to;
		put_in_bucket(t, number);
	}
	vgpu_unlock(&t->lock);
	VGPU_AT(HOLD_KEPT);
	drop_list(stale);
}

uint32_t vgpu_take_claim(enum vgpu_claim_kind kind, uint64_t key)
{
	struct table *t = enter();
	uint32_t list = 0, number = t ? find(t, kind, key) : 0;

	if (number)
		take_from_bucket(t, number, &list);
	if (t)
		vgpu_unlock(&t->lock);
	return list;
}

/* Find the mappings one after the other by their addresses. If no known mapping begins at the next
 * address, scan all mappings for the rest of the range. */
uint32_t vgpu_take_mappings(uint64_t address, uint64_t bytes)
{
	struct wanted rest = {.kind = VGPU_CLAIM_MAPPING, .key = address, .extent = bytes};
	struct table *t = enter();
	uint32_t list = 0, number;

	if (!t)
		return 0;
	while (rest.extent && (number = find(t, VGPU_CLAIM_MAPPING, rest.key))) {
		uint64_t extent = t->claim[number].to.extent;

		if (extent > rest.extent || !extent)
			break; /* the driver refuses to unmap part of a mapping */
		take_from_bucket(t, number, &list);
		rest.key += extent;
		rest.extent -= extent;
	}
	if (rest.extent)
		take_wanted(t, &rest, &list);
	vgpu_unlock(&t->lock);
	return list;
}

uint32_t vgpu_take_bindings(uint64_t handle, CUdevice device, uint64_t offset, uint64_t bytes)
{
	struct wanted part = {VGPU_CLAIM_BINDING, offset, bytes, 0, device};
	struct table *t = enter();
	uint32_t list = 0;

	if (!t)
		return 0;
	part.owner = t->claim[find(t, VGPU_CLAIM_HANDLE, handle)].memory;
	if (part.owner)
		take_wanted(t, &part, &list);
	vgpu_unlock(&t->lock);
	return list;
}

uint32_t vgpu_take_tiles_of_array(uint64_t array)
{
	return array ? take_all((struct wanted){.kind = VGPU_CLAIM_TILE, .owner = array}) : 0;
}

void vgpu_settle_claims(uint32_t list, CUresult driver_result)
{
	uint32_t number;
	struct table *t;

	VGPU_AT(HOLD_LET);
	if (driver_result == CUDA_SUCCESS) {
		drop_list(list);
		VGPU_AT(HOLD_REFUNDED);
		return;
	}
	t = list ? enter() : NULL;
	for (; t && (number = list); put_in_bucket(t, number))
		list = t->claim[number].next;
	if (t)
		vgpu_unlock(&t->lock);
}

void vgpu_claims_end_context(uint32_t context)
{
	for (int kind = VGPU_CLAIM_TILE; kind <= VGPU_CLAIM_VIEW; kind++)
		vgpu_settle_claims(take_all((struct wanted){.kind = kind, .extent = context}),
				   CUDA_SUCCESS);
}
