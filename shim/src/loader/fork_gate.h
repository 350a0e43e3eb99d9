/*
 * While one of our threads reads the loader's list of objects, or takes a turn's lock, nobody
 * forks.
 *
 * libc reads that list under a lock that a fork child never gets back once another thread of its
 * parent held it: the child's first lookup would wait for ever. A lock that still hangs on a
 * descriptor would be the child's as well. So fork waits for those inside, and those that come
 * meanwhile wait for fork; either for a second at most. Not for raw clone, nor on musl, whose fork
 * takes its lock itself.
 */
#ifndef VGPU_FORK_GATE_H
#define VGPU_FORK_GATE_H

/* In pairs; a thread that is inside may enter again. */
void vgpu_fork_gate_enter(void);
void vgpu_fork_gate_leave(void);

#endif
