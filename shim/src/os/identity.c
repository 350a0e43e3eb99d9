#include "os/identity.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "os/file.h"
#include "os/text.h"

/* The name, the second field of /proc/PID/stat, may contain spaces and parentheses. So fields are
 * counted from its end. */
#define FIELDS_FROM_NAME_TO_START 20

static uint64_t start_ticks(const char *proc)
{
	char path[64], text[1024];
	uint64_t ticks = 0;
	const char *at;
	long got;

	snprintf(path, sizeof(path), "/proc/%s/stat", proc);
	got = vgpu_read_some(path, text, sizeof(text) - 1);
	if (got <= 0)
		return 0;
	text[got] = '\0';
	at = strrchr(text, ')');
	for (int field = 0; at && field < FIELDS_FROM_NAME_TO_START; field++)
		at = strchr(at + 1, ' ');
	if (!at)
		return 0;
	at++;
	(void)vgpu_text_number(&at, 10, UINT64_MAX, &ticks);
	return ticks;
}

/* The line NSpid lists the pids of this process, from the PID namespace of this /proc down to the
 * process's own. If there is only one pid, this /proc is of the process's own namespace. */
static bool proc_is_ours(uint32_t pid)
{
	char text[4096];
	const char *line;
	uint64_t number;
	long got = vgpu_read_some("/proc/self/status", text, sizeof(text) - 1);

	if (got <= 0)
		return false;
	text[got] = '\0';
	line = strstr(text, "\nNSpid:");
	if (!line)
		return false;
	line += strlen("\nNSpid:");
	line += strspn(line, " \t");
	return vgpu_text_number(&line, 10, UINT32_MAX, &number) && number == pid && *line == '\n';
}

void vgpu_identity_of_self(struct vgpu_identity *self)
{
	struct vgpu_file namespace;

	memset(self, 0, sizeof(*self));
	self->pid = (uint32_t)syscall(SYS_getpid);
	if (!proc_is_ours(self->pid) || !vgpu_file_at("/proc/self/ns/pid", &namespace))
		return;
	self->start_ticks = start_ticks("self");
	self->pid_namespace = self->start_ticks ? namespace.inode : 0;
}

bool vgpu_identity_is_visible(const struct vgpu_identity *self, const struct vgpu_identity *other)
{
	return self->pid_namespace && self->pid_namespace == other->pid_namespace &&
	       other->start_ticks && other->pid && other->pid <= INT32_MAX;
}

bool vgpu_identity_pid_is_free(const struct vgpu_identity *other)
{
	return syscall(SYS_kill, other->pid, 0) != 0 && errno == ESRCH;
}

enum vgpu_presence vgpu_identity_presence(const struct vgpu_identity *self,
					  const struct vgpu_identity *other)
{
	char name[16];
	uint64_t start;

	if (!vgpu_identity_is_visible(self, other))
		return VGPU_UNKNOWN;
	snprintf(name, sizeof(name), "%u", other->pid);
	start = start_ticks(name);
	if (start)
		return start == other->start_ticks ? VGPU_PRESENT : VGPU_GONE;
	/* Either the process has exited, or it is hidden (hidepid), or no descriptor was free. A
	 * signal tells whether it has exited. */
	return vgpu_identity_pid_is_free(other) ? VGPU_GONE : VGPU_PRESENT;
}

/* A line of maps is "address perms offset device inode path". `file` points at its "device
 * inode". */
struct maps_line {
	uint64_t start;
	uint64_t offset;
	const char *file;
	size_t file_chars;
};

static bool parse(const char *text, struct maps_line *line)
{
	const char *at = text;

	if (!vgpu_text_number(&at, 16, UINT64_MAX, &line->start) || *at != '-')
		return false;
	for (int field = 0; field < 3; field++) {
		at = strchr(at, ' ');
		if (!at)
			return false;
		at++;
		if (field == 1 && !vgpu_text_number(&at, 16, UINT64_MAX, &line->offset))
			return false;
	}
	line->file = at;
	at = strchr(at, ' ');
	at = at ? strchr(at + 1, ' ') : NULL;
	line->file_chars = at ? (size_t)(at - line->file) : strlen(line->file);
	return true;
}

enum { FOUND, NOT_FOUND, EMPTY, UNREADABLE };

/* The mapping to find: at the address `start`, or if `start` is 0, of `file` at `offset`. */
struct wanted {
	uint64_t start;
	uint64_t offset;
	char file[64];
};

/* True if the line is the wanted mapping. If it is wanted by `start`, also note its file. */
static bool is_wanted(const struct maps_line *line, struct wanted *wanted)
{
	if (!wanted->start)
		return line->offset == wanted->offset && line->file_chars == strlen(wanted->file) &&
		       !memcmp(line->file, wanted->file, line->file_chars);
	if (line->start != wanted->start)
		return false;
	if (line->file_chars < sizeof(wanted->file)) {
		memcpy(wanted->file, line->file, line->file_chars);
		wanted->file[line->file_chars] = '\0';
	}
	return true;
}

/* Search a file `maps`. Lines that do not fit the buffer are cut, which loses only the path's
 * end. */
static int search(const char *path, struct wanted *wanted)
{
	char text[4096 + 1];
	struct maps_line line;
	size_t have = 0;
	bool any = false, mid_line = false;
	int found = NOT_FOUND, fd = vgpu_open(path, O_RDONLY);
	long got;

	if (fd < 0)
		return UNREADABLE;
	while ((got = syscall(SYS_read, fd, text + have, sizeof(text) - 1 - have)) > 0) {
		char *at = text, *newline;

		any = true;
		have += (size_t)got;
		text[have] = '\0';
		while (found == NOT_FOUND && (newline = strchr(at, '\n'))) {
			*newline = '\0';
			if (!mid_line && parse(at, &line) && is_wanted(&line, wanted))
				found = FOUND;
			mid_line = false;
			at = newline + 1;
		}
		have = strlen(at);
		memmove(text, at, have);
		if (have == sizeof(text) - 1) {
			mid_line = true;
			have = 0;
		}
	}
	syscall(SYS_close, fd);
	if (found == FOUND)
		return FOUND;
	return got < 0 ? UNREADABLE : any ? NOT_FOUND : EMPTY;
}

/* Search the maps of each thread, because those of the first thread are empty if it has ended
 * before other threads. */
static int search_threads(uint32_t pid, struct wanted *wanted)
{
	char path[64], entries[2048];
	int found = EMPTY, fd;
	long got;

	snprintf(path, sizeof(path), "/proc/%u/task", pid);
	fd = vgpu_open(path, O_RDONLY | O_DIRECTORY);
	if (fd < 0)
		return UNREADABLE;
	while (found == EMPTY &&
	       (got = syscall(SYS_getdents64, fd, entries, sizeof(entries))) > 0) {
		for (long at = 0; at < got && found == EMPTY;) {
			const struct dirent64 *entry = (const struct dirent64 *)(entries + at);

			at += entry->d_reclen;
			if (entry->d_name[0] == '.')
				continue;
			snprintf(path, sizeof(path), "/proc/%u/task/%.10s/maps", pid,
				 entry->d_name);
			found = search(path, wanted);
		}
	}
	syscall(SYS_close, fd);
	return found;
}

bool vgpu_identity_maps(const struct vgpu_identity *other, const void *ours, uint64_t offset)
{
	struct wanted wanted = {.start = (uint64_t)(uintptr_t)ours, .offset = offset};
	char path[64];
	int found;

	/* Read the file's device from maps, because on overlayfs and btrfs stat() returns
	 * another. */
	if (search("/proc/thread-self/maps", &wanted) != FOUND || !wanted.file[0])
		return true;
	wanted.start = 0;
	snprintf(path, sizeof(path), "/proc/%u/maps", other->pid);
	found = search(path, &wanted);
	if (found == EMPTY)
		found = search_threads(other->pid, &wanted);
	return found == FOUND || found == UNREADABLE;
}
