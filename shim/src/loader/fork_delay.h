/*
 * Delays fork while a thread of the library reads the loader's list of objects.
 *
 * libc reads that list under a lock. If another thread of the parent holds the lock at a fork, it
 * is never released in the child, and the child's first lookup blocks forever. So fork waits for
 * the threads that are inside, and threads that want to begin wait for fork. Each waits for a
 * second at most. Raw clone is not delayed. Nor is fork on musl, which takes its lock itself.
 */
#pragma once

/* Calls are paired. A thread that is inside may begin again. */
void vgpu_fork_delay_begin(void);
void vgpu_fork_delay_end(void);
