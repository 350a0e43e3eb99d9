#include "compute/lease_file.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "charge/enforcement.h"
#include "os/file.h"
#include "os/lock.h"
#include "region/directory.h"
#include "region/process.h"
#include "vgpu/region.h"

/* A waiting launch is tried again at least this often, even if it misses a wake. */
#define LONGEST_SLEEP_NS UINT64_C(40000000)

static const volatile uint32_t yes = 1, no;

/* 1 until the process's first launch has read the lease file. */
const volatile uint32_t *vgpu_launches_checked_word = &yes;
static const char *mapping; /* NULL: there is no file */

static void decide(const volatile uint32_t *word)
{
	__atomic_store_n(&vgpu_launches_checked_word, word, __ATOMIC_RELEASE);
}

static const volatile struct vgpu_lease_record *records(int gpu)
{
	return (const volatile struct vgpu_lease_record *)(mapping +
							   sizeof(struct vgpu_lease_header)) +
	       2 * (uint32_t)gpu;
}

static const char *map(void)
{
	const struct vgpu_lease_header *header;
	const char *mapped = NULL;
	char path[VGPU_PATH_BYTES];
	struct vgpu_file file;
	int fd;

	vgpu_directory_path(VGPU_FILE_LEASE, path);
	fd = vgpu_open(path, O_RDONLY);
	if (fd < 0)
		return NULL;
	if (vgpu_file_of(fd, &file) && file.regular && file.bytes == VGPU_LEASE_FILE_BYTES)
		mapped = vgpu_map_file(fd, 0, VGPU_LEASE_FILE_BYTES, PROT_READ);
	syscall(SYS_close, fd);
	header = (const struct vgpu_lease_header *)mapped;
	if (!mapped || (header->magic == VGPU_LEASE_MAGIC && header->version == VGPU_LEASE_VERSION))
		return mapped;
	munmap((void *)mapped, VGPU_LEASE_FILE_BYTES);
	return NULL;
}

static bool any_is_capped(void)
{
	const struct vgpu_environment *environment = vgpu_directory_environment();

	for (int gpu = 0; environment && gpu < VGPU_ENVIRONMENT_MAX_GPUS; gpu++)
		if (environment->limits[gpu].core_percent % 100)
			return true;
	for (int gpu = 0; gpu < VGPU_MAX_GPUS; gpu++)
		if (vgpu_core_percent(gpu) % 100)
			return true;
	return false;
}

static void find(void)
{
	if (vgpu_enforcement_begin() != VGPU_ENFORCEMENT_ACTIVE) {
		decide(&no);
		return;
	}
	if (!vgpu_directory_environment())
		mapping = map();
	if (mapping)
		decide(&((const volatile struct vgpu_lease_header *)mapping)->launches_checked);
	else
		decide(any_is_capped() ? &yes : &no);
}

void vgpu_lease_file_find(void)
{
	static struct vgpu_lock lock;
	static bool found;

	if (__atomic_load_n(&found, __ATOMIC_ACQUIRE) || !vgpu_lock(&lock))
		return;
	if (!found)
		find();
	__atomic_store_n(&found, true, __ATOMIC_RELEASE);
	vgpu_unlock(&lock);
}

/* Where the own part of the cycle begins, if no arbiter has assigned it. The region's inode number
 * spreads the containers' parts, which may overlap all the same. */
static uint32_t offset_ppm(uint32_t share_ppm)
{
	const struct vgpu_process *process = vgpu_process();
	uint64_t number = process ? process->region_inode * UINT64_C(0x9e3779b97f4a7c15) >> 32 : 0;

	return (uint32_t)(number % (VGPU_LEASE_WHOLE_PPM - share_ppm + 1));
}

void vgpu_lease_refresh(int gpu, struct vgpu_lease_record *lease)
{
	const volatile struct vgpu_lease_record *pair;
	uint32_t percent;

	if (mapping && gpu < VGPU_MAX_GPUS) {
		pair = records(gpu);
		if (__atomic_load_n(&pair[(lease->sequence + 1) % 2].sequence, __ATOMIC_ACQUIRE) >
			lease->sequence ||
		    !lease->sequence)
			(void)vgpu_lease_read(pair, lease);
	}
	if (lease->sequence)
		return;
	percent = vgpu_core_percent(gpu);
	lease->share_ppm =
	    percent % 100 ? percent * (VGPU_LEASE_WHOLE_PPM / 100) : VGPU_LEASE_WHOLE_PPM;
	lease->offset_ppm = offset_ppm(lease->share_ppm);
}

void vgpu_lease_wait(int gpu, const struct vgpu_lease_record *lease, uint64_t now_ns,
		     uint64_t until_ns)
{
	uint64_t pause_ns = until_ns > now_ns ? until_ns - now_ns : 1;
	struct timespec pause;
	const volatile struct vgpu_lease_record *next;

	if (pause_ns > LONGEST_SLEEP_NS)
		pause_ns = LONGEST_SLEEP_NS;
	if (!mapping || gpu >= VGPU_MAX_GPUS) {
		vgpu_pause(pause_ns);
		return;
	}
	pause = (struct timespec){0, (long)pause_ns};
	/* The arbiter writes the two records alternately. The one that it writes next now has the
	 * number `sequence - 1`. Sleep until that number changes. */
	next = &records(gpu)[(lease->sequence + 1) % 2];
	syscall(SYS_futex, &next->sequence, FUTEX_WAIT,
		(uint32_t)(lease->sequence ? lease->sequence - 1 : 0), &pause, NULL, 0);
}
