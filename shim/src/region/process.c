/* The wiped page; see process.h. */
#include "region/process.h"

#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "os/wiped.h"

_Static_assert(offsetof(struct vgpu_process, birth) == 0, "one page is both");

struct vgpu_birth *vgpu_birth_page;
__thread struct vgpu_thread vgpu_thread;

uint64_t vgpu_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static struct vgpu_birth *make_page(void)
{
	const size_t bytes = sizeof(struct vgpu_process);
	struct vgpu_birth *made, *expected = NULL;
	bool wiped;

	made = vgpu_wiped_fresh(bytes, &wiped);
	if (!made)
		return NULL;
	if (!wiped)
		made->pid_if_unwiped = (uint32_t)syscall(SYS_getpid);
	if (!__atomic_compare_exchange_n(&vgpu_birth_page, &expected, made, false, __ATOMIC_ACQ_REL,
					 __ATOMIC_ACQUIRE)) {
		munmap(made, bytes);
		return expected;
	}
	return made;
}

static void forget_parent(struct vgpu_birth *birth)
{
	uint32_t pid = (uint32_t)syscall(SYS_getpid);

	if (birth->pid_if_unwiped == pid)
		return;
	memset(birth, 0, sizeof(struct vgpu_process));
	birth->pid_if_unwiped = pid;
}

struct vgpu_birth *vgpu_birth_begin(void)
{
	struct vgpu_birth *birth = __atomic_load_n(&vgpu_birth_page, __ATOMIC_ACQUIRE);
	uint64_t unborn = 0;

	if (!birth)
		birth = make_page();
	if (!birth)
		return NULL;
	if (birth->pid_if_unwiped)
		forget_parent(birth);
	if (!__atomic_load_n(&birth->ns, __ATOMIC_RELAXED))
		__atomic_compare_exchange_n(&birth->ns, &unborn, vgpu_now_ns(), false,
					    __ATOMIC_RELAXED, __ATOMIC_RELAXED);
	return birth;
}

uint32_t vgpu_thread_begin(void)
{
	const struct vgpu_birth *birth = vgpu_birth();

	vgpu_thread.id = (uint32_t)syscall(SYS_gettid);
	vgpu_thread.birth_ns = birth ? __atomic_load_n(&birth->ns, __ATOMIC_RELAXED) : 0;
	return vgpu_thread.id;
}
