/* The parts of vgpu-core-test: a shell over region.h, and many processes or threads at once. */
#pragma once

int core_shell(void);
int core_many(int argc, char **argv);
int core_threads(int argc, char **argv);
