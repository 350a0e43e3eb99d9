/* The mapping of the grant, and its last valid content. See grant.h. */
#include "region/grant.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "os/crc32.h"
#include "os/file.h"
#include "os/lock.h"
#include "os/uuid.h"

#define COPIES	   2
#define COPY_BYTES (VGPU_GRANT_CHECKSUM_OFFSET + sizeof(uint32_t))

_Static_assert(VGPU_GRANT_CHECKSUM_OFFSET ==
		   sizeof(struct vgpu_grant_head) + VGPU_MAX_GPUS * sizeof(struct vgpu_grant_gpu),
	       "the checksum follows the GPUs");
_Static_assert(COPY_BYTES <= VGPU_GRANT_COPY_STRIDE, "a copy fits its stride");

/* A private copy of the file's content, because the file may change after the check of a copy. */
union copy {
	struct {
		struct vgpu_grant_head head;
		struct vgpu_grant_gpu gpus[VGPU_MAX_GPUS];
		uint32_t checksum;
	} is;
	char bytes[COPY_BYTES];
};

/* The last valid content. All fields but the limits are set once, before `loaded`. The fields of
 * the limits are read without the lock. Without a mapping the limits are from the environment, and
 * each GPU is added at its first use. */
static struct {
	struct vgpu_lock lock;
	bool loaded;
	const char *mapping;
	uint64_t seen[COPIES];
	uint64_t sequence;
	uint64_t id;
	int gpu_count;
	uint8_t uuids[VGPU_ENVIRONMENT_MAX_GPUS][16];
	struct vgpu_grant_limits limits[VGPU_ENVIRONMENT_MAX_GPUS];
} grant;

static uint64_t sequence_at(const char *mapping, int index)
{
	return __atomic_load_n((const uint64_t *)(mapping + index * VGPU_GRANT_COPY_STRIDE),
			       __ATOMIC_ACQUIRE);
}

static bool valid(const union copy *copy)
{
	const struct vgpu_grant_head *head = &copy->is.head;

	return head->sequence && head->magic == VGPU_GRANT_MAGIC &&
	       head->version == VGPU_GRANT_VERSION && head->gpu_count >= 1 &&
	       head->gpu_count <= VGPU_MAX_GPUS &&
	       copy->is.checksum == vgpu_crc32(copy->bytes, VGPU_GRANT_CHECKSUM_OFFSET);
}

/* Read the newest valid copy into `newest`. `seen` gets both sequence numbers, read before the
 * copies. */
static bool read_newest(const char *mapping, union copy *newest, uint64_t seen[COPIES])
{
	union copy copy;
	bool any = false;

	for (int index = 0; index < COPIES; index++) {
		seen[index] = sequence_at(mapping, index);
		memcpy(copy.bytes, mapping + index * VGPU_GRANT_COPY_STRIDE, COPY_BYTES);
		if (!valid(&copy) || (any && copy.is.head.sequence < newest->is.head.sequence))
			continue;
		*newest = copy;
		any = true;
	}
	return any;
}

static bool same_grant(const union copy *copy)
{
	uint8_t uuid[16];

	if (copy->is.head.grant_id != grant.id || (int)copy->is.head.gpu_count != grant.gpu_count)
		return false;
	for (int gpu = 0; gpu < grant.gpu_count; gpu++) {
		(void)vgpu_uuid_parse(copy->is.gpus[gpu].uuid, VGPU_GRANT_UUID_CHARS, uuid);
		if (memcmp(uuid, grant.uuids[gpu], sizeof(uuid)) != 0)
			return false;
	}
	return true;
}

static void set_limits(int gpu, const struct vgpu_grant_limits *from)
{
	struct vgpu_grant_limits *to = &grant.limits[gpu];

#define SET(field, value) __atomic_store_n(&to->field, value, __ATOMIC_RELAXED)
	SET(limit_bytes, from->limit_bytes);
	SET(overhead_bytes, from->overhead_bytes);
	SET(chargeable_bytes, from->limit_bytes > from->overhead_bytes
				  ? from->limit_bytes - from->overhead_bytes
				  : 0);
	SET(context_bytes, from->context_bytes);
	SET(code_bytes, from->code_bytes);
	SET(core_percent, from->core_percent);
	SET(flags, from->flags);
#undef SET
}

static void take_limits(const union copy *copy, const uint64_t seen[COPIES])
{
	for (int gpu = 0; gpu < grant.gpu_count; gpu++) {
		const struct vgpu_grant_gpu *from = &copy->is.gpus[gpu];

		set_limits(gpu, &(struct vgpu_grant_limits){
				    .limit_bytes = from->limit_bytes,
				    .overhead_bytes = from->overhead_bytes,
				    .context_bytes = from->context_bytes,
				    .code_bytes = from->code_bytes,
				    .core_percent = from->core_percent,
				    .flags = from->flags,
				});
	}
	grant.sequence = copy->is.head.sequence;
	for (int index = 0; index < COPIES; index++)
		__atomic_store_n(&grant.seen[index], seen[index], __ATOMIC_RELEASE);
}

static enum vgpu_result map(const char *path, const char **mapping, int *os_errno)
{
	struct vgpu_file file;
	enum vgpu_result result = VGPU_OK;
	int fd = vgpu_open(path, O_RDONLY);

	*os_errno = fd < 0 ? errno : 0;
	if (fd < 0) /* a lack of descriptors or memory is no fault of the file */
		return *os_errno == EMFILE || *os_errno == ENFILE || *os_errno == ENOMEM
			   ? VGPU_SYSTEM
			   : VGPU_GRANT_MISSING;
	if (!vgpu_file_of(fd, &file) || !file.regular || file.bytes != VGPU_GRANT_FILE_BYTES)
		result = VGPU_GRANT_INVALID;
	else
		*mapping = vgpu_map_file(fd, 0, VGPU_GRANT_FILE_BYTES, PROT_READ);
	if (result == VGPU_OK && !*mapping) {
		*os_errno = errno;
		result = VGPU_SYSTEM;
	}
	syscall(SYS_close, fd);
	return result;
}

static enum vgpu_result load_locked(const char *path, int *os_errno)
{
	const char *mapping = NULL;
	uint64_t seen[COPIES];
	union copy copy;
	enum vgpu_result result = map(path, &mapping, os_errno);

	if (result != VGPU_OK)
		return result;
	if (!read_newest(mapping, &copy, seen)) {
		munmap((void *)mapping, VGPU_GRANT_FILE_BYTES);
		return VGPU_GRANT_INVALID;
	}
	grant.id = copy.is.head.grant_id;
	grant.gpu_count = (int)copy.is.head.gpu_count;
	/* A malformed UUID becomes all zeros, which is no GPU's UUID. */
	for (int gpu = 0; gpu < grant.gpu_count; gpu++)
		(void)vgpu_uuid_parse(copy.is.gpus[gpu].uuid, VGPU_GRANT_UUID_CHARS,
				      grant.uuids[gpu]);
	take_limits(&copy, seen);
	grant.mapping = mapping;
	__atomic_store_n(&grant.loaded, true, __ATOMIC_RELEASE);
	return VGPU_OK;
}

enum vgpu_result vgpu_grant_load(const char *path, int *os_errno)
{
	enum vgpu_result result = VGPU_OK;

	*os_errno = 0;
	if (__atomic_load_n(&grant.loaded, __ATOMIC_ACQUIRE))
		return VGPU_OK;
	if (!vgpu_lock(&grant.lock))
		return VGPU_SYSTEM;
	if (!grant.loaded)
		result = load_locked(path, os_errno);
	vgpu_unlock(&grant.lock);
	return result;
}

void vgpu_grant_assume(uint64_t id, int gpu_count)
{
	if (!vgpu_lock(&grant.lock))
		return;
	if (!grant.loaded) {
		grant.id = id;
		grant.gpu_count = gpu_count;
		__atomic_store_n(&grant.loaded, true, __ATOMIC_RELEASE);
	}
	vgpu_unlock(&grant.lock);
}

void vgpu_grant_add(int gpu, const uint8_t uuid[16], const struct vgpu_grant_limits *limits)
{
	if (!vgpu_lock(&grant.lock))
		return;
	set_limits(gpu, limits);
	memcpy(grant.uuids[gpu], uuid, 16);
	vgpu_unlock(&grant.lock);
}

/* Take the limits of the newest copy. If another thread has the lock, continue with slightly older
 * limits. In refresh() this code's large stack frame would slow down the hot path. */
__attribute__((noinline)) static void read_again(void)
{
	uint64_t seen[COPIES];
	union copy copy;

	if (!vgpu_trylock(&grant.lock))
		return;
	if (read_newest(grant.mapping, &copy, seen) && same_grant(&copy) &&
	    copy.is.head.sequence >= grant.sequence)
		take_limits(&copy, seen);
	vgpu_unlock(&grant.lock);
}

static void refresh(void)
{
	bool changed = false;

	if (!grant.mapping)
		return;
	for (int index = 0; index < COPIES; index++)
		changed |= sequence_at(grant.mapping, index) !=
			   __atomic_load_n(&grant.seen[index], __ATOMIC_ACQUIRE);
	if (__builtin_expect(changed, 0))
		read_again();
}

int vgpu_grant_gpu_count(void)
{
	return grant.gpu_count;
}

uint64_t vgpu_grant_id(void)
{
	return grant.id;
}

int vgpu_grant_find(const uint8_t uuid[16])
{
	int found = -1;

	if (!__atomic_load_n(&grant.loaded, __ATOMIC_ACQUIRE) || !vgpu_lock(&grant.lock))
		return -1;
	for (int gpu = 0; gpu < grant.gpu_count && found < 0; gpu++)
		if (!memcmp(grant.uuids[gpu], uuid, 16))
			found = gpu;
	vgpu_unlock(&grant.lock);
	return found;
}

const struct vgpu_grant_limits *vgpu_grant_limits(int gpu)
{
	static const struct vgpu_grant_limits nothing;

	if (!__atomic_load_n(&grant.loaded, __ATOMIC_ACQUIRE) || gpu < 0 || gpu >= grant.gpu_count)
		return &nothing;
	refresh();
	return &grant.limits[gpu];
}
