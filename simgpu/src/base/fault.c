/*
 * A fault belongs to one GPU: the current context's, or without one the first GPU that has a fault.
 * While no fault is armed, a call costs one read of memory per GPU.
 */
#include "base/driver.h"

#include <string.h>

static struct sim_link *armed_link(void)
{
	struct sim_link *link = NULL;
	struct context *context;

	for (int i = 0; driver_is_up() && !link && i < driver.devices; i++)
		if (sim_link_faults(driver.device[i].link))
			link = driver.device[i].link;
	if (!link)
		return NULL;
	driver_lock();
	if (context_current(&context) == CUDA_SUCCESS)
		link = context->device->link;
	driver_unlock();
	return sim_link_faults(link) ? link : NULL;
}

bool fault_strikes(const char *name, CUresult *result)
{
	struct sim_call_name call = {0};
	struct sim_fault fault;
	struct sim_link *link = armed_link();

	if (!link)
		return false;
	strncpy(call.name, name, sizeof(call.name) - 1);
	if (sim_call(link, SIM_FAULT, &call, sizeof(call), &fault, sizeof(fault), NULL) != SIM_OK)
		return false;
	wait_until_ns(now_ns() + fault.latency_ns);
	*result = fault.code;
	return fault.code != CUDA_SUCCESS;
}
