#include "region/region_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "os/crc32.h"
#include "region/directory.h"
#include "region/process.h"

#define LINE_BYTES 64

static struct vgpu_view geometry(int gpu_count)
{
	uint64_t stride = sizeof(struct vgpu_region_slot) +
			  (uint64_t)gpu_count * sizeof(struct vgpu_region_slot_gpu);

	return (struct vgpu_view){
	    .slots_offset = sizeof(struct vgpu_region_header) +
			    (uint64_t)gpu_count * sizeof(struct vgpu_region_gpu),
	    .slot_stride = (uint32_t)((stride + LINE_BYTES - 1) / LINE_BYTES * LINE_BYTES),
	    .gpu_count = gpu_count,
	};
}

static uint64_t file_bytes(const struct vgpu_view *view)
{
	return view->slots_offset + (uint64_t)VGPU_MAX_SLOTS * view->slot_stride +
	       (uint64_t)view->gpu_count * sizeof(struct vgpu_region_compute);
}

static bool header_fits(const struct vgpu_region_header *header, const struct vgpu_view *view,
			uint64_t grant_id)
{
	return header->magic == VGPU_REGION_MAGIC && header->version == VGPU_REGION_VERSION &&
	       header->checksum ==
		   vgpu_crc32(header, offsetof(struct vgpu_region_header, checksum)) &&
	       header->gpu_count == (uint32_t)view->gpu_count &&
	       header->slot_count == VGPU_MAX_SLOTS && header->slot_stride == view->slot_stride &&
	       header->slots_offset == view->slots_offset &&
	       header->file_bytes == file_bytes(view) && header->grant_id == grant_id;
}

static enum vgpu_result why_not_open(int os_errno)
{
	switch (os_errno) {
	case ENOENT:
	case ENOTDIR:
		return VGPU_REGION_MISSING;
	case EROFS:
	case EACCES:
	case EPERM:
		return VGPU_REGION_READONLY;
	default:
		return VGPU_SYSTEM;
	}
}

enum vgpu_result vgpu_region_open(const char *path, uint64_t grant_id, int gpu_count, int *fd,
				  struct vgpu_file *file, int *os_errno)
{
	struct vgpu_view view = geometry(gpu_count);
	struct vgpu_region_header header;

	*fd = vgpu_open(path, O_RDWR);
	*os_errno = *fd < 0 ? errno : 0;
	if (*fd < 0)
		return *os_errno == EISDIR ? VGPU_REGION_INVALID : why_not_open(*os_errno);
	if (vgpu_file_of(*fd, file) && file->regular && file->bytes == file_bytes(&view) &&
	    syscall(SYS_pread64, *fd, &header, sizeof(header), 0) == sizeof(header) &&
	    header_fits(&header, &view, grant_id))
		return VGPU_OK;
	syscall(SYS_close, *fd);
	*fd = -1;
	return VGPU_REGION_INVALID;
}

/* Allocate the whole file. Otherwise writing to a hole of the mapping would raise SIGBUS if the
 * disk is full. */
static bool fill_holes(int fd, uint64_t bytes, int *os_errno)
{
	struct vgpu_file file;

	if (!vgpu_file_of(fd, &file) || file.allocated_bytes >= bytes ||
	    syscall(SYS_fallocate, fd, 0, 0, bytes) == 0 || errno == EOPNOTSUPP)
		return true;
	*os_errno = errno;
	return false;
}

enum vgpu_result vgpu_region_map(int fd, int gpu_count, struct vgpu_view *view, int *os_errno)
{
	*view = geometry(gpu_count);
	if (!fill_holes(fd, file_bytes(view), os_errno))
		return VGPU_SYSTEM;
	view->base = vgpu_map_file(fd, 0, file_bytes(view), PROT_READ | PROT_WRITE);
	if (!view->base) {
		*os_errno = errno;
		return VGPU_SYSTEM;
	}
	/* No child inherits the mapping, by which identity.c would take the child for an attached
	 * process. */
	madvise(view->base, file_bytes(view), MADV_DONTFORK);
	return VGPU_OK;
}

static bool fill(int fd, int *os_errno)
{
	struct vgpu_view view = geometry(VGPU_ENVIRONMENT_MAX_GPUS);
	struct vgpu_region_header header = {
	    .magic = VGPU_REGION_MAGIC,
	    .version = VGPU_REGION_VERSION,
	    .gpu_count = VGPU_ENVIRONMENT_MAX_GPUS,
	    .file_bytes = file_bytes(&view),
	    .grant_id = VGPU_ENVIRONMENT_ID,
	    .slot_count = VGPU_MAX_SLOTS,
	    .slot_stride = view.slot_stride,
	    .slots_offset = view.slots_offset,
	};

	header.checksum = vgpu_crc32(&header, offsetof(struct vgpu_region_header, checksum));
	if (syscall(SYS_ftruncate, fd, header.file_bytes) == 0 &&
	    syscall(SYS_pwrite64, fd, &header, sizeof(header), 0) == sizeof(header) &&
	    syscall(SYS_fchmod, fd, 0666) == 0)
		return fill_holes(fd, header.file_bytes, os_errno);
	*os_errno = errno;
	return false;
}

enum vgpu_result vgpu_region_make(const char *path, int *os_errno)
{
	char draft[VGPU_PATH_BYTES + 32];
	bool made;
	int fd;

	snprintf(draft, sizeof(draft), "%s.%x.%llx", path, (unsigned int)syscall(SYS_getpid),
		 (unsigned long long)vgpu_now_ns());
	fd = vgpu_open(draft, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW);
	if (fd < 0) {
		*os_errno = errno;
		return VGPU_CACHE_UNUSABLE;
	}
	/* Unlike rename(), link() does not replace an existing file. */
	made = fill(fd, os_errno);
	if (made && syscall(SYS_linkat, AT_FDCWD, draft, AT_FDCWD, path, 0) != 0) {
		*os_errno = errno;
		made = errno == EEXIST;
	}
	syscall(SYS_unlinkat, AT_FDCWD, draft, 0);
	syscall(SYS_close, fd);
	return made ? VGPU_OK : VGPU_CACHE_UNUSABLE;
}
