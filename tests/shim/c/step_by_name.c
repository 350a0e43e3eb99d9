/*
 * In the library built for tests, VGPU_TEST_STOP="STEP N" makes the process stop itself (SIGSTOP)
 * when it passes that step for the Nth time.
 */
#include "os/step.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const names[] = {
#define STEP(name) [VGPU_STEP_##name] = #name,
#include "os/hook_steps.def"
#include "os/steps.def"
#undef STEP
};

void vgpu_step(enum vgpu_step step)
{
	static int passages;
	const char *wanted = getenv("VGPU_TEST_STOP");
	size_t chars = strlen(names[step]);

	if (!wanted || strncmp(wanted, names[step], chars) != 0 || wanted[chars] != ' ')
		return;
	if (__atomic_add_fetch(&passages, 1, __ATOMIC_RELAXED) == atoi(wanted + chars))
		kill(getpid(), SIGSTOP);
}
