/*
 * Events between processes: one page for each, of the process that made the event.
 *
 * The handle names the page by that process and its descriptor, so processes must see each other in
 * /proc, as with NVIDIA's driver. The page exists while any process has it; the handle is valid
 * while the event exists in its creator.
 */
#define _GNU_SOURCE
#include "context/event.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define HANDLE_MAGIC 0x7665706d6973ull /* "simpev" */
#define PAGE_BYTES   4096

struct handle {
	uint64_t magic, nonce;
	uint8_t uuid[16];
	int32_t pid, fd;
	uint64_t reserved[3];
};

_Static_assert(sizeof(struct handle) == sizeof(CUipcEventHandle), "a handle is 64 bytes");

static struct moment *map(int fd)
{
	void *page = mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	return page == MAP_FAILED ? NULL : page;
}

/* By its number: glibc has a name for the call since 2.27, and containers have older ones. */
static int new_page(void)
{
	int fd = (int)syscall(SYS_memfd_create, "simgpu-event", 1u /* MFD_CLOEXEC */);

	if (fd >= 0 && ftruncate(fd, PAGE_BYTES) != 0) {
		close(fd);
		return -1;
	}
	return fd;
}

bool event_share(struct event *event)
{
	int fd = new_page();
	struct moment *page = fd < 0 ? NULL : map(fd);

	if (!page || syscall(SYS_getrandom, &page->nonce, sizeof(page->nonce), 0) < 0) {
		if (fd >= 0)
			close(fd);
		return false;
	}
	event->fd = fd;
	event->moment = page;
	return true;
}

void event_unshare(struct event *event)
{
	if (event->moment != &event->own)
		munmap(event->moment, PAGE_BYTES);
	if (event->fd >= 0)
		close(event->fd);
}

CUresult cuIpcGetEventHandle(CUipcEventHandle *out, CUevent event_handle)
{
	struct handle handle = {.magic = HANDLE_MAGIC, .pid = getpid()};
	struct event *event;
	CUresult result = driver_enter();

	if (result != CUDA_SUCCESS)
		return result;
	event = object_get(event_handle, OBJECT_EVENT);
	if (!event || event->fd < 0)
		return driver_leave(CUDA_ERROR_INVALID_HANDLE);
	if (!out)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	handle.nonce = event->moment->nonce;
	handle.fd = event->fd;
	memcpy(handle.uuid, event->context->device->gpu->uuid, sizeof(handle.uuid));
	memcpy(out, &handle, sizeof(handle));
	return driver_leave(CUDA_SUCCESS);
}

/* The page that the handle names; NULL if it no longer exists, or is another one's by now. */
static struct moment *page_of(const struct handle *handle)
{
	struct moment *page;
	char path[64];
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/fd/%d", handle->pid, handle->fd);
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return NULL;
	page = map(fd);
	close(fd);
	if (page && page->nonce != handle->nonce) {
		munmap(page, PAGE_BYTES);
		page = NULL;
	}
	return page;
}

static CUresult open_checked(CUevent *out, struct context *context, const struct handle *handle)
{
	struct moment *page;
	struct event *event;

	if (handle->magic != HANDLE_MAGIC)
		return CUDA_ERROR_INVALID_HANDLE;
	if (handle->pid == getpid())
		return CUDA_ERROR_INVALID_CONTEXT;
	if (memcmp(handle->uuid, context->device->gpu->uuid, sizeof(handle->uuid)) != 0)
		return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
	page = page_of(handle);
	if (!page)
		return CUDA_ERROR_INVALID_HANDLE;
	event = object_new(OBJECT_EVENT, sizeof(*event));
	if (!event) {
		munmap(page, PAGE_BYTES);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	event->context = context;
	event->flags = CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING;
	event->fd = -1;
	event->moment = page;
	*out = object_handle(event);
	return CUDA_SUCCESS;
}

CUresult cuIpcOpenEventHandle(CUevent *out, CUipcEventHandle given)
{
	struct context *context;
	struct handle handle;
	CUresult result;

	if (!out)
		return driver_is_up() ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_NOT_INITIALIZED;
	result = context_enter(NULL, &context);
	if (result != CUDA_SUCCESS)
		return result;
	memcpy(&handle, &given, sizeof(handle));
	return driver_leave(open_checked(out, context, &handle));
}
