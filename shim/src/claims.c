/*
 * See claims.h. Claims hang in one hash table by kind and key; those of a list, kept or taken, hang
 * on each other and are in no one else's sight. What has to look at all claims (a handle that was
 * retained by address, an unbinding, an array that goes) is rare.
 */
#include "claims.h"

#include <stddef.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "lock.h"
#include "wiped.h"

enum { BUCKET_BITS = 14, BUCKETS = 1 << BUCKET_BITS, FEW_EXPORTS = 64 };

struct claim {
	uint64_t key, extent, owner;
	uint32_t next;	 /* in the bucket, in a list, or among the free */
	uint32_t memory; /* 0: free */
	uint8_t kind;
	bool hangs; /* in its bucket */
};

struct memory {
	struct vgpu_reservation charge;
	uint32_t claims; /* 0: free */
	uint32_t next_free;
	CUdevice device;
	bool imported;
};

/* Numbers begin at 1. `used`: numbers given so far. */
struct table {
	struct vgpu_wiped wiped;
	struct vgpu_lock lock;
	uint32_t claims_used, claims_free, memories_used, memories_free;
	uint32_t kinds[VGPU_CLAIM_KINDS]; /* how many hang in the table */
	uint32_t bucket[BUCKETS];
	struct claim claim[VGPU_CLAIMS];
	struct memory memory[VGPU_CLAIMS];
};

static struct vgpu_wiped *the_table;
bool vgpu_any_view; /* there was one */

/* NULL where nothing was ever claimed. */
static struct table *table_if_any(void)
{
	return __atomic_load_n(&the_table, __ATOMIC_ACQUIRE)
		   ? vgpu_wiped_pages(&the_table, sizeof(struct table))
		   : NULL;
}

static uint32_t *bucket_of(struct table *table, enum vgpu_claim_kind kind, uint64_t key)
{
	uint64_t spread = (key + ((uint64_t)kind << 56)) * UINT64_C(0x9e3779b97f4a7c15);

	return &table->bucket[spread >> (64 - BUCKET_BITS)];
}

static uint32_t take_claim(struct table *table, uint32_t memory)
{
	uint32_t number = table->claims_free;

	if (number)
		table->claims_free = table->claim[number].next;
	else if (table->claims_used + 1 < VGPU_CLAIMS)
		number = ++table->claims_used;
	if (number) {
		table->claim[number] = (struct claim){.memory = memory};
		table->memory[memory].claims++;
	}
	return number;
}

static uint32_t take_memory(struct table *table)
{
	uint32_t number = table->memories_free;

	if (number)
		table->memories_free = table->memory[number].next_free;
	else if (table->memories_used + 1 < VGPU_CLAIMS)
		number = ++table->memories_used;
	return number;
}

static void hang(struct table *table, uint32_t number)
{
	struct claim *claim = &table->claim[number];
	uint32_t *bucket = bucket_of(table, claim->kind, claim->key);

	claim->next = *bucket;
	claim->hangs = true;
	*bucket = number;
	__atomic_add_fetch(&table->kinds[claim->kind], 1, __ATOMIC_RELAXED);
}

/* Takes the claim that `*link` leads to out of its bucket and puts it at the head of the list. */
static void unhang(struct table *table, uint32_t *link, uint32_t *list)
{
	uint32_t number = *link;

	*link = table->claim[number].next;
	table->claim[number].next = *list;
	table->claim[number].hangs = false;
	*list = number;
	__atomic_sub_fetch(&table->kinds[table->claim[number].kind], 1, __ATOMIC_RELAXED);
}

static uint32_t *find(struct table *table, enum vgpu_claim_kind kind, uint64_t key)
{
	uint32_t *link = bucket_of(table, kind, key);

	while (*link && (table->claim[*link].kind != kind || table->claim[*link].key != key))
		link = &table->claim[*link].next;
	return link;
}

static uint32_t *link_to(struct table *table, uint32_t number)
{
	uint32_t *link = bucket_of(table, table->claim[number].kind, table->claim[number].key);

	while (*link != number)
		link = &table->claim[*link].next;
	return link;
}

/* What was bound to a multicast object is bound no more. */
static void unbind_all(struct table *table, uint32_t memory, uint32_t *list)
{
	for (uint32_t i = 1; i <= table->claims_used; i++)
		if (table->claim[i].hangs && table->claim[i].kind == VGPU_CLAIM_BINDING &&
		    table->claim[i].owner == memory)
			unhang(table, link_to(table, i), list);
}

/* Drops one claim. What it was the last one to is freed, and its charge is the caller's to refund.
 */
static struct vgpu_reservation drop(struct table *table, uint32_t number, uint32_t *orphans)
{
	struct vgpu_reservation charge = {.place = {.card = VGPU_CARD_UNMANAGED}};
	uint32_t memory = table->claim[number].memory;

	table->claim[number] = (struct claim){.next = table->claims_free};
	table->claims_free = number;
	if (--table->memory[memory].claims)
		return charge;
	charge = table->memory[memory].charge;
	if (table->memory[memory].device == VGPU_MULTICAST)
		unbind_all(table, memory, orphans);
	table->memory[memory] = (struct memory){.next_free = table->memories_free};
	table->memories_free = memory;
	return charge;
}

/* Drops a list, one at a time, so that nobody waits for the region under the lock. */
static void drop_all(struct table *table, uint32_t list)
{
	while (list) {
		struct vgpu_reservation charge;
		uint32_t number = list;

		vgpu_lock(&table->lock);
		list = table->claim[number].next;
		charge = drop(table, number, &list);
		vgpu_unlock(&table->lock);
		vgpu_cancel(&charge);
	}
}

static uint32_t claim_memory(struct memory made)
{
	struct table *table = vgpu_wiped_pages(&the_table, sizeof(struct table));
	uint32_t memory, claim = 0;

	if (!table)
		return 0;
	vgpu_lock(&table->lock);
	memory = take_memory(table);
	if (memory) {
		table->memory[memory] = made;
		claim = take_claim(table, memory);
	}
	if (memory && !claim) {
		table->memory[memory] = (struct memory){.next_free = table->memories_free};
		table->memories_free = memory;
	}
	vgpu_unlock(&table->lock);
	return claim;
}

uint32_t vgpu_claim_new(const struct vgpu_reservation *charge, CUdevice device)
{
	return claim_memory((struct memory){.charge = *charge, .device = device});
}

uint32_t vgpu_claim_import(const struct vgpu_reservation *charge, CUdevice device)
{
	return claim_memory((struct memory){.charge = *charge, .device = device, .imported = true});
}

static bool claim_known(enum vgpu_claim_kind kind, uint64_t key, uint32_t *claim)
{
	struct table *table = table_if_any();
	uint32_t known;

	*claim = 0;
	if (!table)
		return true;
	vgpu_lock(&table->lock);
	known = *find(table, kind, key);
	if (known)
		*claim = take_claim(table, table->claim[known].memory);
	vgpu_unlock(&table->lock);
	return *claim || !known;
}

bool vgpu_claim_handle(uint64_t handle, uint32_t *claim)
{
	return claim_known(VGPU_CLAIM_HANDLE, handle, claim);
}

bool vgpu_claim_external(uint64_t import, uint32_t *claim)
{
	return claim_known(VGPU_CLAIM_EXTERNAL, import, claim);
}

uint32_t vgpu_memory_named(uint64_t handle)
{
	struct table *table = table_if_any();
	uint32_t memory;

	if (!table)
		return 0;
	vgpu_lock(&table->lock);
	memory = table->claim[*find(table, VGPU_CLAIM_HANDLE, handle)].memory;
	vgpu_unlock(&table->lock);
	return memory;
}

/* The mapping that begins at an address; failing that, any that holds it. */
static uint32_t mapping_at(struct table *table, uint64_t address)
{
	uint32_t number = *find(table, VGPU_CLAIM_MAPPING, address);

	for (uint32_t i = 1; !number && i <= table->claims_used; i++)
		if (table->claim[i].hangs && table->claim[i].kind == VGPU_CLAIM_MAPPING &&
		    address - table->claim[i].key < table->claim[i].extent)
			number = i;
	return number;
}

bool vgpu_claim_range(uint64_t address, uint64_t bytes, uint32_t *list)
{
	struct table *table = table_if_any();
	uint64_t offset = 0;
	uint32_t mapping;
	bool room = true;

	*list = 0;
	if (!table)
		return true;
	vgpu_lock(&table->lock);
	while (offset < bytes && room && (mapping = mapping_at(table, address + offset))) {
		uint32_t claim = take_claim(table, table->claim[mapping].memory);

		room = claim != 0;
		if (room)
			table->claim[claim].next = *list;
		*list = room ? claim : *list;
		offset = table->claim[mapping].key + table->claim[mapping].extent - address;
	}
	vgpu_unlock(&table->lock);
	if (room)
		return true;
	drop_all(table, *list);
	*list = 0;
	return false;
}

/*
 * What a driver then refuses to map stays charged until the memory goes, since another thread may
 * have relied on it meanwhile.
 */
CUresult vgpu_claim_grow(uint32_t claim, uint64_t bytes)
{
	struct table *table = table_if_any();
	struct memory *memory = &table->memory[table->claim[claim].memory];
	uint64_t charged_bytes = __atomic_load_n(&memory->charge.bytes, __ATOMIC_ACQUIRE);

	while (memory->imported && bytes > charged_bytes) {
		struct vgpu_reservation more;
		CUresult result =
		    vgpu_reserve_at(memory->charge.place, bytes - charged_bytes, &more);

		if (result != CUDA_SUCCESS)
			return result;
		if (__atomic_compare_exchange_n(&memory->charge.bytes, &charged_bytes, bytes, false,
						__ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
			break;
		vgpu_cancel(&more); /* another thread maps it too */
	}
	return CUDA_SUCCESS;
}

/* Of which there is one with a key at a time. */
static bool is_alone(enum vgpu_claim_kind kind)
{
	return kind == VGPU_CLAIM_MAPPING || kind == VGPU_CLAIM_TILE ||
	       kind == VGPU_CLAIM_EXTERNAL || kind == VGPU_CLAIM_VIEW;
}

void vgpu_claim_end(uint32_t list, CUresult driver_said, struct vgpu_claim_to to)
{
	struct table *table = table_if_any();
	uint32_t stale = 0, *link;

	if (!list || driver_said != CUDA_SUCCESS) {
		drop_all(table, list);
		return;
	}
	vgpu_lock(&table->lock);
	/* Nothing else can be there: it went without our being told. */
	link = find(table, to.kind, to.key);
	if (*link && is_alone(to.kind))
		unhang(table, link, &stale);
	if (to.kind == VGPU_CLAIM_VIEW)
		__atomic_store_n(&vgpu_any_view, true, __ATOMIC_RELAXED);
	while (list) {
		struct claim *claim = &table->claim[list];
		uint32_t number = list;

		list = claim->next;
		claim->kind = (uint8_t)to.kind;
		claim->key = to.key;
		claim->extent = to.extent;
		claim->owner = to.owner;
		hang(table, number);
	}
	vgpu_unlock(&table->lock);
	drop_all(table, stale);
}

static uint32_t take_one(enum vgpu_claim_kind kind, uint64_t key)
{
	struct table *table = table_if_any();
	uint32_t list = 0, *link;

	if (!table)
		return 0;
	vgpu_lock(&table->lock);
	link = find(table, kind, key);
	if (*link)
		unhang(table, link, &list);
	vgpu_unlock(&table->lock);
	return list;
}

uint32_t vgpu_take_handle(uint64_t handle)
{
	return take_one(VGPU_CLAIM_HANDLE, handle);
}

uint32_t vgpu_take_tile(uint64_t key)
{
	return take_one(VGPU_CLAIM_TILE, key);
}

uint32_t vgpu_take_external(uint64_t import)
{
	return take_one(VGPU_CLAIM_EXTERNAL, import);
}

uint32_t vgpu_take_known_view(uint64_t key)
{
	return take_one(VGPU_CLAIM_VIEW, key);
}

void vgpu_forget_handle(uint64_t handle)
{
	uint32_t stale;

	while ((stale = vgpu_take_handle(handle)))
		vgpu_settle_claims(stale, CUDA_SUCCESS);
}

static uint32_t take_mappings_in_a_row(uint64_t address, uint64_t bytes, uint64_t *done_bytes)
{
	struct table *table = table_if_any();
	uint64_t offset = 0;
	uint32_t list = 0, *link;

	*done_bytes = 0;
	if (!table)
		return 0;
	vgpu_lock(&table->lock);
	while (offset < bytes && *(link = find(table, VGPU_CLAIM_MAPPING, address + offset))) {
		uint64_t extent = table->claim[*link].extent;

		if (extent > bytes - offset || !extent)
			break; /* the driver refuses a part of a mapping */
		unhang(table, link, &list);
		offset += extent;
	}
	vgpu_unlock(&table->lock);
	*done_bytes = offset;
	return list;
}

/* The lists are nobody else's. */
static uint32_t joined_lists(uint32_t first, uint32_t second)
{
	struct table *table = table_if_any();
	uint32_t last = first;

	if (!first || !second)
		return first ? first : second;
	while (table->claim[last].next)
		last = table->claim[last].next;
	table->claim[last].next = second;
	return first;
}

struct chosen {
	enum vgpu_claim_kind kind;
	bool (*is)(const struct table *table, const struct claim *claim,
		   const struct chosen *wanted);
	uint64_t key, extent, owner;
	CUdevice device;
};

static uint32_t take_chosen(struct chosen wanted)
{
	struct table *table = table_if_any();
	uint32_t list = 0;

	if (!table || !__atomic_load_n(&table->kinds[wanted.kind], __ATOMIC_RELAXED))
		return 0;
	vgpu_lock(&table->lock);
	for (uint32_t i = 1; i <= table->claims_used; i++)
		if (table->claim[i].hangs && table->claim[i].kind == wanted.kind &&
		    wanted.is(table, &table->claim[i], &wanted))
			unhang(table, link_to(table, i), &list);
	vgpu_unlock(&table->lock);
	return list;
}

static bool in_part(const struct table *table, const struct claim *claim,
		    const struct chosen *wanted)
{
	return claim->owner == wanted->owner && claim->key - wanted->key < wanted->extent &&
	       table->memory[claim->memory].device == wanted->device;
}

uint32_t vgpu_take_bindings(uint32_t multicast, CUdevice device, uint64_t offset, uint64_t bytes)
{
	return multicast ? take_chosen((struct chosen){.kind = VGPU_CLAIM_BINDING,
						       .is = in_part,
						       .key = offset,
						       .extent = bytes,
						       .owner = multicast,
						       .device = device})
			 : 0;
}

static bool is_within(const struct table *table, const struct claim *claim,
		      const struct chosen *wanted)
{
	uint64_t offset = claim->key - wanted->key;

	(void)table;
	return offset < wanted->extent && claim->extent <= wanted->extent - offset;
}

/* Behind memory that is nobody's charge all have to be looked at. */
uint32_t vgpu_take_mappings(uint64_t address, uint64_t bytes)
{
	uint64_t done_bytes;
	uint32_t list = take_mappings_in_a_row(address, bytes, &done_bytes);

	if (done_bytes < bytes)
		list =
		    joined_lists(list, take_chosen((struct chosen){.kind = VGPU_CLAIM_MAPPING,
								   .is = is_within,
								   .key = address + done_bytes,
								   .extent = bytes - done_bytes}));
	return list;
}

static bool has_owner(const struct table *table, const struct claim *claim,
		      const struct chosen *wanted)
{
	(void)table;
	return claim->owner == wanted->owner;
}

static bool has_extent(const struct table *table, const struct claim *claim,
		       const struct chosen *wanted)
{
	(void)table;
	return claim->extent == wanted->extent;
}

uint32_t vgpu_take_tiles_of_array(uint64_t array)
{
	return take_chosen(
	    (struct chosen){.kind = VGPU_CLAIM_TILE, .is = has_owner, .owner = array});
}

void vgpu_settle_claims(uint32_t list, CUresult driver_said)
{
	struct table *table = table_if_any();

	if (driver_said == CUDA_SUCCESS) {
		drop_all(table, list);
		return;
	}
	while (list) {
		uint32_t number = list;

		vgpu_lock(&table->lock);
		list = table->claim[number].next;
		hang(table, number);
		vgpu_unlock(&table->lock);
	}
}

void vgpu_claims_end_context(uint32_t context)
{
	static const enum vgpu_claim_kind kinds[] = {VGPU_CLAIM_TILE, VGPU_CLAIM_EXTERNAL,
						     VGPU_CLAIM_VIEW};

	for (unsigned int i = 0; i < sizeof(kinds) / sizeof(*kinds); i++)
		vgpu_settle_claims(take_chosen((struct chosen){
				       .kind = kinds[i], .is = has_extent, .extent = context}),
				   CUDA_SUCCESS);
}

/* By the kernel's own number: glibc has a name for it since 2.33 only. */
static bool file_of(int fd, uint64_t *device, uint64_t *inode)
{
	struct stat file;

	if (syscall(SYS_fstat, fd, &file) != 0)
		return false;
	*device = file.st_dev;
	*inode = file.st_ino;
	return true;
}

void vgpu_keep_export(uint32_t claim, int fd)
{
	struct vgpu_claim_to to = {.kind = VGPU_CLAIM_EXPORT, .key = (uint64_t)fd};

	vgpu_claim_end(
	    claim, file_of(fd, &to.extent, &to.owner) ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND, to);
}

static bool is_closed(const struct table *table, const struct claim *claim,
		      const struct chosen *wanted)
{
	uint64_t device, inode;

	(void)table, (void)wanted;
	return !file_of((int)claim->key, &device, &inode) || device != claim->extent ||
	       inode != claim->owner;
}

bool vgpu_drop_closed_exports(void)
{
	uint32_t list = take_chosen((struct chosen){.kind = VGPU_CLAIM_EXPORT, .is = is_closed});

	if (list)
		drop_all(table_if_any(), list);
	return list != 0;
}

void vgpu_drop_closed_exports_if_few(void)
{
	struct table *table = table_if_any();

	if (table &&
	    __atomic_load_n(&table->kinds[VGPU_CLAIM_EXPORT], __ATOMIC_RELAXED) <= FEW_EXPORTS)
		(void)vgpu_drop_closed_exports();
}
