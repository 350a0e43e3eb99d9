/*
 * The program starts: do we come first? The one thing that is done at load time.
 *
 * A program's calls are bound to the first library that has their names. The loader searches those
 * of LD_PRELOAD before the ones of /etc/ld.so.preload, so that a variable puts libc or the driver
 * in front of us, and our wrappers behind them. Then the program is executed anew, from its very
 * beginning, with us in front of that library. Other libraries keep their places: those that wrap
 * dlopen and dlsym hand on to us, and a sanitizer's runtime has to be first of all.
 *
 * Linked with -z initfirst: nothing but the loader has run. No lock, no thread, no libc that was
 * set up, and in a process that needs no such thing no system call.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "file.h"
#include "loader.h"
#include "log.h"
#include "preloads.h"
#include "resolve.h"

/* Between a program's arguments and us lie a few frames of the loader, which take some 150 bytes;
 * of a dlopen, ten times as many. */
#define START_STACK_BYTES 768
/* More than the kernel takes. */
#define ARGUMENTS_BYTES (UINT64_C(8) << 20)
#define THIS_PROGRAM	"/proc/self/exe"

/* musl has none, and calls constructors without arguments. */
const char *gnu_get_libc_version(void) __attribute__((weak));

static bool is_programs_start(int argc, char **argv, char **environment)
{
	uintptr_t here = (uintptr_t)__builtin_frame_address(0);

	return gnu_get_libc_version && (uintptr_t)argv - here < START_STACK_BYTES &&
	       environment == argv + argc + 1;
}

static bool passes_us_by(const struct vgpu_object *object)
{
	return vgpu_is_libcs(object) || vgpu_is_driver(object);
}

/* Never given back: the next program has memory of its own. */
static void *fresh(uint64_t bytes)
{
	long at = syscall(SYS_mmap, NULL, bytes, PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	return at == -1 ? NULL : (void *)at;
}

/* With that entry for the variable, or without the variable. */
static char **with_preloads(char **environment, char *entry)
{
	const char *old = vgpu_preloads_find(environment);
	size_t count = 0, kept = 0;

	while (environment[count])
		count++;
	char **made = fresh((count + 2) * sizeof(*made));
	for (size_t i = 0; made && i < count; i++)
		if (!vgpu_preloads_is(environment[i]))
			made[kept++] = environment[i];
		else if (entry && environment[i] == old)
			made[kept++] = entry;
	if (made && entry && !old)
		made[kept] = entry;
	return made;
}

/* What the kernel was given: a loader that was started by hand takes its own options away. */
static char **kernels_arguments(void)
{
	char *text = fresh(ARGUMENTS_BYTES);
	long bytes = text ? vgpu_read_some("/proc/self/cmdline", text, ARGUMENTS_BYTES) : -1;
	size_t count = 0;

	if (bytes <= 0 || (uint64_t)bytes == ARGUMENTS_BYTES || text[bytes - 1])
		return NULL;
	for (long i = 0; i < bytes; i++)
		count += !text[i];
	char **made = fresh((count + 1) * sizeof(*made));
	for (size_t i = 0; made && i < count; i++) {
		made[i] = text;
		while (*text++)
			;
	}
	return made;
}

static bool is_elf(const char *path)
{
	char magic[4] = "";

	return vgpu_read_some(path, magic, sizeof(magic)) == sizeof(magic) && magic[0] == 0x7f &&
	       magic[1] == 'E' && magic[2] == 'L' && magic[3] == 'F';
}

/* Under which names the running file can be executed: the one it was started by, so that the
 * process keeps its own; a script is not that file, and another may lie there now. */
static void execute(char **argv, char **environment)
{
	const char *started = (const char *)getauxval(AT_EXECFN);
	char linked[PATH_MAX] = "";
	const char *names[] = {started, linked, THIS_PROGRAM};
	struct vgpu_file running, named;
	bool known = vgpu_file_at(THIS_PROGRAM, &running);

	if (!environment)
		return;
	if (known)
		(void)syscall(SYS_readlinkat, AT_FDCWD, THIS_PROGRAM, linked, sizeof(linked) - 1);
	for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
		if (!names[i] || !vgpu_file_at(names[i], &named))
			continue;
		if (known ? named.device == running.device && named.inode == running.inode
			  : is_elf(names[i]))
			syscall(SYS_execve, names[i], argv, environment);
	}
}

/*
 * The second start has us in the list, in front of that library: one that finds us there, and that
 * library before us still, is the last. The kernel bounds what an environment takes; where there is
 * no room for our name, the others' go.
 */
static void start_anew(char **argv, char **environment, const struct vgpu_rank *rank)
{
	const char *old = vgpu_preloads_find(environment);
	char *entry = fresh(vgpu_preloads_room(old, rank->ours));
	int place = vgpu_preloads_place(old, rank->theirs, rank->others);

	if (!getauxval(AT_BASE)) /* the kernel started the loader itself */
		argv = kernels_arguments();
	if (!argv || !entry || vgpu_preloads_names(old, rank->ours, place))
		return;
	vgpu_preloads_insert(old, rank->ours, place, entry);
	execute(argv, with_preloads(environment, entry));
	vgpu_preloads_alone(rank->ours, entry);
	if (old)
		execute(argv, with_preloads(environment,
					    vgpu_preloads_names(old, rank->ours, INT_MAX) ? entry
											  : NULL));
}

__attribute__((constructor)) static void start(int argc, char **argv, char **environment)
{
	struct vgpu_rank rank;
	int kept_errno = errno;

	if (!is_programs_start(argc, argv, environment))
		return;
	if (vgpu_object_before_us(passes_us_by, &rank)) {
		if (!getauxval(
			AT_SECURE)) /* a setuid program's loader takes no path from a variable */
			start_anew(argv, environment, &rank);
		vgpu_log_passed_by(rank.theirs, rank.ours);
	}
	errno = kept_errno;
}
