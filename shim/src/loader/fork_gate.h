/*
 * Delays fork while a thread of the library reads the loader's list of objects, or takes a turn's
 * lock.
 *
 * libc reads that list under a lock that a fork child never gets back if another thread of its
 * parent held it: the child's first lookup would block for ever. A lock that is still tied to a
 * descriptor would be the child's as well. So fork waits for the threads inside, and threads that
 * enter meanwhile wait for fork; either for a second at most. Not for raw clone, nor on musl, whose
 * fork takes its lock itself.
 */
#pragma once

/* Calls are paired; a thread that is inside may enter again. */
void vgpu_fork_gate_enter(void);
void vgpu_fork_gate_leave(void);
