/* The parts of vgpu-core-test: a shell over region.h, races and loops for speed, threads for the
 * sanitizers. */
#ifndef CORE_TEST_H
#define CORE_TEST_H

int core_shell(void);
int core_race(int argc, char **argv);
int core_loop(int argc, char **argv);
int core_many(int argc, char **argv);
int core_threads(int argc, char **argv);

#endif
