#include "region/counter.h"

#include "os/step.h"

#define SEQUENCE_MASK ((UINT64_C(1) << VGPU_TAG_SLOT_SHIFT) - 1)

_Static_assert(VGPU_MAX_SLOTS <= 1 << 15, "a slot's number fits between sequence and drop bit");
_Static_assert((VGPU_MAX_SLOTS & (VGPU_MAX_SLOTS - 1)) == 0, "a tag's slot is masked, not checked");
_Static_assert(sizeof(struct vgpu_region_header) % 16 == 0, "words are aligned");
_Static_assert(sizeof(struct vgpu_region_slot) % 16 == 0, "words are aligned");
_Static_assert(sizeof(struct vgpu_region_slot_gpu) % 16 == 0, "words are aligned");

/* A 16-byte word as two halves. Whenever the low half changes, the high half changes too, to a
 * value that it never had before. The exception is an operation that is published after a refusal:
 * it has the refused one's number, which has never been swapped into the counter. */
struct word {
	uint64_t low;
	uint64_t high;
};

static uint64_t load(const uint64_t *from)
{
	return __atomic_load_n(from, __ATOMIC_ACQUIRE);
}

/* No instruction but the swap loads 16 bytes at once. So read the high half twice: if both values
 * are equal, the halves belong together. */
static struct word load_word(const uint64_t *from)
{
	struct word word;

	do {
		word.high = load(from + 1);
		word.low = load(from);
	} while (load(from + 1) != word.high);
	return word;
}

#if defined(__aarch64__)

/* Use the exclusive instructions, which every aarch64 processor has. Compilers would turn the
 * builtin into a call of their own library. Unless the store succeeds, the two loaded halves may be
 * of different values. So false means only that another process has written the word. */
static bool swap_word(uint64_t *at, struct word from, struct word to)
{
	struct word seen;
	uint32_t failed;

	do {
		__asm__ volatile("ldaxp %0, %1, %2"
				 : "=&r"(seen.low), "=&r"(seen.high)
				 : "Q"(*(struct word *)at)
				 : "memory");
		if (seen.low != from.low || seen.high != from.high) {
			__asm__ volatile("clrex" : : : "memory");
			return false;
		}
		__asm__ volatile("stlxp %w0, %2, %3, %1"
				 : "=&r"(failed), "=Q"(*(struct word *)at)
				 : "r"(to.low), "r"(to.high)
				 : "memory");
	} while (failed);
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	return true;
}

#else

/* Use the instruction itself. ThreadSanitizer replaces the builtin by a process-local lock and two
 * plain stores, between which other processes could read half a word. */
static bool swap_word(uint64_t *at, struct word from, struct word to)
{
	bool swapped;

	__asm__ volatile("lock cmpxchg16b %1"
			 : "=@ccz"(swapped), "+m"(*(struct word *)at), "+a"(from.low),
			   "+d"(from.high)
			 : "b"(to.low), "c"(to.high)
			 : "memory");
	return swapped;
}

#endif

static uint64_t tag_of(uint32_t slot, uint64_t sequence)
{
	return (uint64_t)slot << VGPU_TAG_SLOT_SHIFT | (sequence & SEQUENCE_MASK);
}

/* Complete the operation that the counter's tag names, by updating its slot's charge. Every process
 * does this before it replaces the tag. So for each GPU at most one operation is in the counter but
 * not yet in its slot. */
static void help(const struct vgpu_view *view, int gpu, uint64_t tag)
{
	uint32_t slot = (uint32_t)(tag >> VGPU_TAG_SLOT_SHIFT) & (VGPU_MAX_SLOTS - 1);
	struct vgpu_region_slot_gpu *entry = vgpu_view_slot_gpu(view, slot, gpu);
	struct word from, to, published;

	from = load_word(&entry->bytes);
	to.high = from.high + 1;
	if ((to.high & SEQUENCE_MASK) != (tag & SEQUENCE_MASK))
		return;
	if (tag & VGPU_TAG_DROP) {
		to.low = 0;
	} else {
		published = load_word((const uint64_t *)&entry->delta_bytes);
		if (published.high != to.high)
			return;
		to.low = from.low + published.low;
	}
	VGPU_AT(HELP_READ);
	swap_word(&entry->bytes, from, to);
	VGPU_AT(HELP_DONE);
}

static struct word load_counter(const struct vgpu_view *view, int gpu)
{
	struct word counter = load_word(&vgpu_view_gpu(view, gpu)->used_bytes);

	VGPU_AT(COUNTER_READ);
	help(view, gpu, counter.high);
	VGPU_AT(COUNTER_HELPED);
	return counter;
}

static bool owns(const struct vgpu_view *view, const struct vgpu_owner *owner)
{
	return load(&vgpu_view_slot(view, owner->slot)->generation) == owner->generation;
}

/* A tenant can write any values into its region. Then the result is wrong, but does not wrap. */
static uint64_t minus(uint64_t used_bytes, uint64_t bytes)
{
	return used_bytes > bytes ? used_bytes - bytes : 0;
}

enum vgpu_applied vgpu_counter_change(const struct vgpu_view *view, int gpu,
				      const struct vgpu_owner *owner, bool adding, uint64_t bytes,
				      uint64_t limit_bytes)
{
	struct vgpu_region_slot_gpu *entry = vgpu_view_slot_gpu(view, owner->slot, gpu);
	uint64_t *published = (uint64_t *)&entry->delta_bytes;
	struct vgpu_region_gpu *record = vgpu_view_gpu(view, gpu);
	struct word from, to, held, former, operation;

	load_counter(view, gpu);
	held = load_word(&entry->bytes);
	if (!adding && bytes > held.low) {
		__atomic_add_fetch(&record->over_refund_count, 1, __ATOMIC_RELAXED);
		bytes = held.low;
	}
	operation = (struct word){adding ? bytes : 0 - bytes, held.high + 1};
	/* Read `former` before checking the owner. If another process takes the slot after the
	 * check, the swap fails. So that process's operation is not replaced. */
	former = load_word(published);
	if (!owns(view, owner))
		return VGPU_LOST;
	VGPU_AT(APPLY_OWNED);
	if (!swap_word(published, former, operation))
		return VGPU_LOST;
	VGPU_AT(APPLY_PUBLISHED);
	do {
		from = load_counter(view, gpu);
		/* Read the sequence after the counter: it shows whether another process has dropped
		 * this slot's charge. */
		if (load(&entry->sequence) != held.high)
			return VGPU_LOST;
		if (adding && (bytes > limit_bytes || from.low > limit_bytes - bytes)) {
			__atomic_add_fetch(&record->refused_count, 1, __ATOMIC_RELAXED);
			__atomic_store_n(&record->last_refused_bytes, bytes, __ATOMIC_RELAXED);
			return VGPU_REFUSED;
		}
		to.low = adding ? from.low + bytes : minus(from.low, bytes);
		to.high = tag_of(owner->slot, operation.high);
	} while (!swap_word(&record->used_bytes, from, to));
	VGPU_AT(COUNTER_SWAPPED);
	help(view, gpu, to.high);
	VGPU_AT(APPLY_DONE);
	return VGPU_APPLIED;
}

uint64_t vgpu_counter_drop(const struct vgpu_view *view, int gpu, const struct vgpu_owner *owner,
			   bool even_empty)
{
	struct vgpu_region_slot_gpu *entry = vgpu_view_slot_gpu(view, owner->slot, gpu);
	uint64_t *counter = &vgpu_view_gpu(view, gpu)->used_bytes;
	struct word from, to, held;

	do {
		from = load_counter(view, gpu);
		held = load_word(&entry->bytes);
		/* Check the owner after reading the charge. A new owner takes its generation before
		 * its first operation, so the charge read is not the new owner's. */
		if (!owns(view, owner) || (held.low == 0 && !even_empty))
			return 0;
		VGPU_AT(DROP_READ);
		to.low = minus(from.low, held.low);
		to.high = tag_of(owner->slot, held.high + 1) | VGPU_TAG_DROP;
	} while (!swap_word(counter, from, to));
	VGPU_AT(DROP_SWAPPED);
	help(view, gpu, to.high);
	VGPU_AT(DROP_DONE);
	return held.low;
}

uint64_t vgpu_counter_used_bytes(const struct vgpu_view *view, int gpu)
{
	return load(&vgpu_view_gpu(view, gpu)->used_bytes);
}

uint64_t vgpu_counter_charged_bytes(const struct vgpu_view *view, int gpu, uint32_t slot)
{
	return load(&vgpu_view_slot_gpu(view, slot, gpu)->bytes);
}
