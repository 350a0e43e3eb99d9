/*
 * A key that travels with an exported file descriptor. By the key an importing process identifies
 * the memory that the descriptor names.
 *
 * The key is the offset of a shared lock on the open file description. Every copy of the
 * descriptor, by fork, dup or SCM_RIGHTS, shares that description. So the copies share the lock,
 * and the lock ends with the description. The kernel lists the lock in /proc/self/fdinfo. No call
 * blocks, because shared locks never conflict.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* A new key for memory or for a multicast object, unique on the machine. */
uint64_t vgpu_export_key_new(bool multicast);
/* A key computed from the bytes of a handle. It is the same in each process. */
uint64_t vgpu_export_key_of(const void *bytes, uint64_t count, bool multicast);
bool vgpu_export_key_is_multicast(uint64_t key);

/* Give the descriptor that key. False: the kernel supports no lock on such a file. */
bool vgpu_export_key_write(int fd, uint64_t key);
/* The descriptor's key. 0: the descriptor has no key, or /proc does not show the key. */
uint64_t vgpu_export_key_read(int fd);
