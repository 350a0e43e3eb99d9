#include "compute/published.h"

#include <stdbool.h>

#define PUBLISH_NS UINT64_C(200000) /* smaller changes of times are not written */

void vgpu_publish(struct vgpu_published *published, struct vgpu_region_compute *record,
		  const struct vgpu_submitted_work *work, uint64_t launched_ns)
{
	uint64_t free_ns = vgpu_work_free_ns(work);
	uint64_t shared_ns = __atomic_load_n(&record->busy_until_ns, __ATOMIC_RELAXED);
	bool raises = free_ns > shared_ns + PUBLISH_NS;
	bool lowers = shared_ns == published->busy_until_ns && free_ns + PUBLISH_NS < shared_ns;

	if (launched_ns > __atomic_load_n(&record->launched_ns, __ATOMIC_RELAXED) + PUBLISH_NS)
		__atomic_store_n(&record->launched_ns, launched_ns, __ATOMIC_RELAXED);
	if ((raises || lowers) &&
	    __atomic_compare_exchange_n(&record->busy_until_ns, &shared_ns, free_ns, false,
					__ATOMIC_RELAXED, __ATOMIC_RELAXED))
		published->busy_until_ns = free_ns;
	if (work->spent_ns != published->spent_ns)
		__atomic_add_fetch(&record->spent_ns, work->spent_ns - published->spent_ns,
				   __ATOMIC_RELAXED);
	published->spent_ns = work->spent_ns;
	if (work->unfinished_since_ns != published->unfinished_since_ns)
		__atomic_store_n(&record->unfinished_since_ns, work->unfinished_since_ns,
				 __ATOMIC_RELAXED);
	published->unfinished_since_ns = work->unfinished_since_ns;
}
