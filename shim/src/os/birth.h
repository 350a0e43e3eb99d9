/*
 * The process generation, and the number of the calling thread in it: a child by fork or raw clone
 * begins a new one, and its first thread inherits its parent's thread-local values.
 *
 * On the path of every lock, so the unchanged case is inline.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* The first member of process.h's page. */
struct vgpu_birth {
	uint64_t ns;		 /* CLOCK_MONOTONIC at first use; 0 in a child until then */
	uint32_t pid_if_unwiped; /* 0: the kernel wipes the page */
};

struct vgpu_thread {
	uint64_t birth_ns; /* of the generation that the number belongs to */
	uint32_t id;
};

extern struct vgpu_birth *vgpu_birth_page;
extern __thread struct vgpu_thread vgpu_thread;

struct vgpu_birth *vgpu_birth_begin(void);
uint32_t vgpu_thread_begin(void);

/* NULL if the kernel provides no page. */
static inline struct vgpu_birth *vgpu_birth(void)
{
	struct vgpu_birth *birth = __atomic_load_n(&vgpu_birth_page, __ATOMIC_ACQUIRE);

	if (__builtin_expect(birth && !birth->pid_if_unwiped &&
				 __atomic_load_n(&birth->ns, __ATOMIC_RELAXED),
			     1))
		return birth;
	return vgpu_birth_begin();
}

static inline uint32_t vgpu_thread_id(void)
{
	const struct vgpu_birth *birth = vgpu_birth();

	if (__builtin_expect(
		birth && vgpu_thread.birth_ns == __atomic_load_n(&birth->ns, __ATOMIC_RELAXED), 1))
		return vgpu_thread.id;
	return vgpu_thread_begin();
}
