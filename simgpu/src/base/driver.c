/*
 * The driver's state in one process, and its lock.
 *
 * As with the real driver, a fork child of an initialised process has none: every call in it, even
 * cuInit, returns CUDA_ERROR_NOT_INITIALIZED. The kernel clears a page in children, also after a
 * raw clone. So reading this page detects a child without a system call.
 */
#define _GNU_SOURCE
#include "base/driver.h"

#include <pthread.h>
#include <sys/mman.h>
#include <time.h>

struct driver driver;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool initialised;
static volatile uint8_t *ours; /* 1 in this process, 0 in a child */

bool driver_is_child(void)
{
	return ours && !*ours;
}

void driver_lock(void)
{
	pthread_mutex_lock(&lock);
}

void driver_unlock(void)
{
	pthread_mutex_unlock(&lock);
}

bool driver_is_up(void)
{
	return __atomic_load_n(&initialised, __ATOMIC_ACQUIRE) && !driver_is_child();
}

CUresult driver_begin(CUresult (*find_devices)(void))
{
	CUresult result;
	uint8_t *page;

	if (initialised)
		return CUDA_SUCCESS;
	page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (page == MAP_FAILED)
		return CUDA_ERROR_OPERATING_SYSTEM;
	result = madvise(page, 4096, MADV_WIPEONFORK) == 0 ? find_devices()
							   : CUDA_ERROR_OPERATING_SYSTEM;
	if (result != CUDA_SUCCESS) {
		munmap(page, 4096);
		return result;
	}
	*page = 1;
	ours = page;
	__atomic_store_n(&initialised, true, __ATOMIC_RELEASE);
	return CUDA_SUCCESS;
}

CUresult driver_enter(void)
{
	if (!driver_is_up())
		return CUDA_ERROR_NOT_INITIALIZED;
	driver_lock();
	return CUDA_SUCCESS;
}

CUresult driver_result(enum sim_status status)
{
	static const CUresult results[] = {
	    [SIM_OK] = CUDA_SUCCESS,
	    [SIM_OUT_OF_MEMORY] = CUDA_ERROR_OUT_OF_MEMORY,
	    [SIM_INVALID_VALUE] = CUDA_ERROR_INVALID_VALUE,
	    [SIM_NOT_FOUND] = CUDA_ERROR_CONTEXT_IS_DESTROYED,
	    [SIM_NOT_SUPPORTED] = CUDA_ERROR_NOT_SUPPORTED,
	    [SIM_GPU_LOST] = CUDA_ERROR_UNKNOWN,
	    [SIM_NO_PERMISSION] = CUDA_ERROR_UNKNOWN,
	};

	return (size_t)status < sizeof(results) / sizeof(*results) ? results[status]
								   : CUDA_ERROR_UNKNOWN;
}

uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void wait_until_ns(uint64_t instant_ns)
{
	struct timespec until = {.tv_sec = (time_t)(instant_ns / 1000000000u),
				 .tv_nsec = (long)(instant_ns % 1000000000u)};

	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) != 0)
		;
}
