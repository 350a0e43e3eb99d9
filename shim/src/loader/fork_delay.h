/*
 * Delays fork while a thread of the library reads the loader's list of objects.
 *
 * libc reads that list under a lock. If another thread holds the lock at a fork, the lock is never
 * released in the child, and the child's first lookup blocks forever. So fork waits for threads
 * between begin and end, and begin waits for a fork under way, each for at most a second. Raw clone
 * is not delayed. Nor is fork on musl, which takes the lock itself.
 */
#pragma once

/* Call these around each reading of the list. Pairs of calls may be nested. */
void vgpu_fork_delay_begin(void);
void vgpu_fork_delay_end(void);
