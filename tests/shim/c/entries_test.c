/*
 * Tests dlsym.S's use of registers, stack and return address on every supported architecture. This
 * file defines the functions that dlsym.S calls. Exits 0 if all tests pass.
 */
#include "test.h"

struct vgpu_registers {
	uintptr_t third, second, first;
};

static struct {
	const void *a, *b, *c, *caller;
} got;

void *dlsym(void *handle, const char *name);
void *dlvsym(void *handle, const char *name, const char *version);
void *dlopen(const char *file, int flags);
void *dlmopen(long name_space, const char *file, int flags);
void *vgpu_dlsym_target(void *handle, const char *name);
void *vgpu_dlvsym_target(void *handle, const char *name);
void *vgpu_dlsym(void *handle, const char *name, const void *caller);
void *vgpu_dlvsym(void *handle, const char *name, const char *version, const void *caller);
void *vgpu_dlopen_target(struct vgpu_registers *call);
void *vgpu_dlmopen_target(struct vgpu_registers *call);

static char handle, answer;

/* Changes every register that a function may change. */
static void clobber(void)
{
#if defined(__x86_64__)
	__asm__ volatile("xor %%edi, %%edi; xor %%esi, %%esi; xor %%edx, %%edx; xor %%ecx, %%ecx" ::
			     : "rdi", "rsi", "rdx", "rcx", "cc");
#elif defined(__aarch64__)
	__asm__ volatile("mov x0, #0; mov x1, #0; mov x2, #0; mov x3, #0; mov x16, #0" ::
			     : "x0", "x1", "x2", "x3", "x16");
#endif
}

static void *real(const void *a, const void *b, const void *c)
{
	got.a = a;
	got.b = b;
	got.c = c;
	got.caller = __builtin_return_address(0);
	return &answer;
}

static void *target(const char *name)
{
	void *to = strcmp(name, "ours") ? (void *)real : NULL;

	clobber();
	return to;
}

void *vgpu_dlsym_target(void *given, const char *name)
{
	MUST(given == &handle);
	return target(name);
}

void *vgpu_dlvsym_target(void *given, const char *name)
{
	return vgpu_dlsym_target(given, name);
}

void *vgpu_dlvsym(void *given, const char *name, const char *version, const void *caller)
{
	real(given, name, version);
	got.caller = caller;
	return &answer;
}

void *vgpu_dlsym(void *given, const char *name, const void *caller)
{
	return vgpu_dlvsym(given, name, NULL, caller);
}

void *vgpu_dlopen_target(struct vgpu_registers *call)
{
	call->second &= ~(uintptr_t)8;
	return target("");
}

void *vgpu_dlmopen_target(struct vgpu_registers *call)
{
	call->first = 0;
	call->third &= ~(uintptr_t)8;
	return target((const char *)call->second);
}

/* Return whether the call's return address lies in `function`, that is near its beginning. */
static int came_from(const void *function)
{
	uintptr_t start = (uintptr_t)function, at = (uintptr_t)got.caller;

	return at > start && at - start < 1024;
}

static __attribute__((noinline)) void calls(const char *name)
{
	static const char version[] = "V";
	void *volatile found = dlsym(&handle, name);

	MUST(found == &answer && got.a == &handle && got.b == name && came_from((void *)calls));
	found = dlvsym(&handle, name, version);
	MUST(found == &answer && got.a == &handle && got.b == name && got.c == version);
	MUST(came_from((void *)calls));
}

static __attribute__((noinline)) void opens(const char *file)
{
	void *volatile found = dlopen(file, 0x10a);

	MUST(found == &answer && got.a == file && (int)(uintptr_t)got.b == 0x102);
	MUST(came_from((void *)opens));
	found = dlmopen(-1, file, 0x10a);
	MUST(found == &answer && got.a == NULL && got.b == file);
	MUST((int)(uintptr_t)got.c == 0x102 && came_from((void *)opens));
}

int main(void)
{
	calls("ours");
	calls("theirs");
	opens("file");
	return 0;
}
