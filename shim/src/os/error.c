/* The error messages for limits that cannot be enforced, one for each vgpu_result. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "vgpu/region.h"

#define AGENT_LOG "; recreate the pod, and see the node agent's log"

static const struct {
	const char *what;
	const char *advice;
} texts[] = {
    [VGPU_OK] = {"the limits are in force", ""},
    [VGPU_UNMANAGED] = {"no limit is set", ""},
    [VGPU_OVER_LIMIT] = {"the allocation exceeds the memory limit", ""},
    [VGPU_GRANT_MISSING] = {"the grant with this container's GPU limits cannot be read", AGENT_LOG},
    [VGPU_GRANT_INVALID] = {"the grant with this container's GPU limits is damaged or of "
			    "another version",
			    AGENT_LOG},
    [VGPU_REGION_MISSING] = {"the file that accounts GPU memory is missing", AGENT_LOG},
    [VGPU_REGION_INVALID] = {"the file that accounts GPU memory is truncated, damaged, or of "
			     "another grant",
			     "; recreate the pod"},
    [VGPU_REGION_READONLY] = {"the file that accounts GPU memory cannot be written",
			      "; it must be mounted writable for this user"},
    [VGPU_NO_SLOT] = {"too many processes use the GPU in this container", "; end some of them"},
    [VGPU_SYSTEM] = {"a system call failed while the GPU limits were set up",
		     "; the program may try again"},
    /* For these results `path` names the variable, as in "environment NAME: invalid value X". */
    [VGPU_ENVIRONMENT_MEMORY] = {"", ": must be bytes, a number with k, m or g, or 0 for no limit"},
    [VGPU_ENVIRONMENT_CORE] = {"", ": must be a whole number, 0 (no limit) to 100"},
    [VGPU_ENVIRONMENT_CONTEXT] = {"", ": must be bytes, or a number with k, m or g"},
    [VGPU_ENVIRONMENT_GPU] = {"", ": LIMIT_ must be followed by the number of a GPU, 0 to 31"},
    [VGPU_CACHE_INVALID] =
	{"the file that accounts GPU memory is damaged, another program's, or of "
	 "another version of this library",
	 "; remove it, or name another in " VGPU_ENV_SHARED_CACHE},
    [VGPU_CACHE_UNUSABLE] = {"the file that accounts GPU memory cannot be made or opened",
			     "; name another in " VGPU_ENV_SHARED_CACHE},
};

const char *vgpu_error_text(const struct vgpu_error *error, char *out, uint64_t out_bytes)
{
	const char *why = error->os_errno ? strerror(error->os_errno) : "";
	const char *what = texts[error->result].what;

	snprintf(out, out_bytes, "%s%s%.255s%s%s%s", what, what[0] && error->path[0] ? ": " : "",
		 error->path, why[0] ? ": " : "", why, texts[error->result].advice);
	return out;
}

enum vgpu_result vgpu_fail(struct vgpu_error *error, enum vgpu_result result, int os_errno,
			   const char *path)
{
	if (error) {
		error->result = result;
		error->os_errno = os_errno;
		snprintf(error->path, sizeof(error->path), "%s", path);
	}
	return result;
}

/* Write the line with one write(2), and only if stderr is ready. Otherwise a full pipe would block
 * the program, and a closed pipe would kill it by SIGPIPE. */
void vgpu_error_print(const struct vgpu_error *error)
{
	static int printed;
	const struct timespec at_once = {0, 0};
	struct pollfd stderr_fd = {.fd = STDERR_FILENO, .events = POLLOUT};
	const char *level = getenv(VGPU_ENV_LOG_LEVEL);
	char reason[512], line[768];
	int kept_errno = errno, length;

	if ((level && strcmp(level, "0") == 0) ||
	    __atomic_exchange_n(&printed, 1, __ATOMIC_RELAXED))
		return;
	length = snprintf(line, sizeof(line), "gpuslice: no GPU for this process: %s\n",
			  vgpu_error_text(error, reason, sizeof(reason)));
	if (syscall(SYS_ppoll, &stderr_fd, 1, &at_once, NULL, 0) == 1 &&
	    stderr_fd.revents == POLLOUT)
		(void)!syscall(SYS_write, STDERR_FILENO, line, length);
	errno = kept_errno;
}
