/*
 * Delays fork while a thread of the library reads the loader's list of objects.
 *
 * libc reads that list under a lock that is never released in a fork child if another thread of its
 * parent held it: the child's first lookup would block without end. So fork waits for the threads
 * inside, and threads that begin meanwhile wait for fork; either for a second at most. Not for raw
 * clone, nor on musl, whose fork takes its lock itself.
 */
#pragma once

/* Calls are paired; a thread that is inside may begin again. */
void vgpu_fork_delay_begin(void);
void vgpu_fork_delay_end(void);
