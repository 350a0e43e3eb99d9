/*
 * One line per process, in one write(2), and only if it does not block: a full pipe would block the
 * program and a closed one would kill it with SIGPIPE, so poll comes first. With
 * LIBCUDA_LOG_LEVEL=0 the code of the driver call is the only report.
 */
#include "charge/log.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

struct line {
	char text[768];
	size_t length;
};

/* Always leaves space for the newline. */
static void append(struct line *line, const char *text)
{
	size_t room = sizeof(line->text) - 1 - line->length;
	size_t length = strnlen(text, room);

	memcpy(line->text + line->length, text, length);
	line->length += length;
}

static void say(struct line *line)
{
	const struct timespec at_once = {0, 0};
	struct pollfd stderr_fd = {.fd = STDERR_FILENO, .events = POLLOUT};

	line->text[line->length++] = '\n';
	if (syscall(SYS_ppoll, &stderr_fd, 1, &at_once, NULL, 0) == 1 &&
	    stderr_fd.revents == POLLOUT)
		(void)!syscall(SYS_write, STDERR_FILENO, line->text, line->length);
}

void vgpu_log_refusal(const struct vgpu_error *error)
{
	static int said;
	struct line line = {.length = 0};
	char reason[512];
	const char *level = getenv(VGPU_ENV_LOG_LEVEL);
	int kept_errno = errno;

	if (level && strcmp(level, "0") == 0)
		return;
	if (__atomic_exchange_n(&said, 1, __ATOMIC_RELAXED))
		return;
	append(&line, "gpuslice: no GPU for this process: ");
	append(&line, vgpu_error_text(error, reason, sizeof(reason)));
	say(&line);
	errno = kept_errno;
}
