/*
 * One line per process, in one write(2), and only where it can be taken at once: a full pipe would
 * block the program and a closed one would kill it with SIGPIPE, so poll is asked first.
 */
#include "log.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

/* What the reader of the line can do about it. */
static const char *const ADVICE[] = {
    [VGPU_GRANT_MISSING] = "start the container again; if it stays, see the node agent's log",
    [VGPU_GRANT_INVALID] = "start the container again; if it stays, see the node agent's log",
    [VGPU_REGION_MISSING] = "start the container again; if it stays, see the node agent's log",
    [VGPU_REGION_INVALID] =
	"start the container again; nothing inside may write this file by itself",
    [VGPU_REGION_READONLY] = "let this user write the file, or start the container again",
    [VGPU_NO_SLOT] = "end some of the processes that use the GPU in this container",
    [VGPU_SYSTEM] = "start the container again; if it stays, see the node agent's log",
};

struct line {
	char text[768];
	size_t length;
};

/* Always leaves room for the newline. */
static void append(struct line *line, const char *text)
{
	size_t room = sizeof(line->text) - 1 - line->length;
	size_t length = strnlen(text, room);

	memcpy(line->text + line->length, text, length);
	line->length += length;
}

void vgpu_log_refusal(const struct vgpu_error *error)
{
	static int said;
	struct pollfd stderr_fd = {.fd = STDERR_FILENO, .events = POLLOUT};
	struct line line = {.length = 0};
	char reason[512];
	int kept_errno = errno;

	if (__atomic_exchange_n(&said, 1, __ATOMIC_RELAXED))
		return;
	append(&line, "gpuslice: no GPU for this process: ");
	append(&line, vgpu_error_text(error, reason, sizeof(reason)));
	if ((size_t)error->result < sizeof(ADVICE) / sizeof(*ADVICE) && ADVICE[error->result]) {
		append(&line, "; ");
		append(&line, ADVICE[error->result]);
	}
	line.text[line.length++] = '\n';
	if (poll(&stderr_fd, 1, 0) == 1 && stderr_fd.revents == POLLOUT) {
		ssize_t written = write(STDERR_FILENO, line.text, line.length);
		(void)written; /* nobody to tell */
	}
	errno = kept_errno;
}
