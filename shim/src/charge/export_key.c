#include "charge/export_key.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "os/file.h"
#include "os/text.h"
#include "region/process.h"

/* A key is a file offset with this bit set. The offsets of other locks are lower. */
#define KEY_MARK      (UINT64_C(1) << 62)
#define KEY_MULTICAST (UINT64_C(1) << 61)
#define KEY_BITS      (KEY_MULTICAST - 1)
#define FDINFO_BYTES  4096

/* The key is a hash of the process's pid and start time, a count and the clock. The clock
 * distinguishes equal pids of different PID namespaces. */
uint64_t vgpu_export_key_new(bool multicast)
{
	static uint64_t count;
	const struct vgpu_process *process = vgpu_process();
	const uint64_t words[] = {vgpu_now_ns(), (uint64_t)syscall(SYS_getpid),
				  process ? process->self.start_ticks : 0,
				  __atomic_add_fetch(&count, 1, __ATOMIC_RELAXED)};

	return vgpu_export_key_of(words, sizeof(words), multicast);
}

uint64_t vgpu_export_key_of(const void *bytes, uint64_t count, bool multicast)
{
	const unsigned char *at = bytes;
	uint64_t hash = UINT64_C(0xcbf29ce484222325);

	for (uint64_t i = 0; i < count; i++) {
		hash = (hash ^ at[i]) * UINT64_C(0x9e3779b97f4a7c15);
		hash ^= hash >> 29;
	}
	return (hash & KEY_BITS) | KEY_MARK | (multicast ? KEY_MULTICAST : 0);
}

bool vgpu_export_key_is_multicast(uint64_t key)
{
	return key & KEY_MULTICAST;
}

bool vgpu_export_key_write(int fd, uint64_t key)
{
	struct flock lock = {
	    .l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = (off_t)key, .l_len = 1};

	return syscall(SYS_fcntl, fd, F_OFD_SETLK, &lock) == 0;
}

/* The first word of the text that is a number with the key's bit. */
static uint64_t key_in(const char *text)
{
	static const char blanks[] = " \t\n";
	uint64_t number;

	for (text += strspn(text, blanks); *text; text += strspn(text, blanks)) {
		if (vgpu_text_number(&text, 10, KEY_MARK * 2 - 1, &number) && number >= KEY_MARK &&
		    *text && strchr(blanks, *text))
			return number;
		text += strcspn(text, blanks);
	}
	return 0;
}

uint64_t vgpu_export_key_read(int fd)
{
	char path[64], text[FDINFO_BYTES];
	long count;

	snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", fd);
	count = vgpu_read_some(path, text, sizeof(text) - 1);
	text[count > 0 ? count : 0] = '\0';
	return key_in(text);
}
