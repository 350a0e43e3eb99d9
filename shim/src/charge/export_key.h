/*
 * A key that travels with an exported file descriptor. By the key an importing process identifies
 * which memory of its container the descriptor names.
 *
 * The key is the offset of a shared lock on the open file description. Every copy of the
 * descriptor, by fork, dup or SCM_RIGHTS, shares that description and so the lock, which ends with
 * it. The kernel lists such locks in /proc/self/fdinfo. Nothing else of the description changes.
 * Nothing blocks, because shared locks never conflict.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* A new key, unique on the machine, of a multicast object or of memory. */
uint64_t vgpu_export_key_new(bool multicast);
/* A key computed from the bytes of another kind of handle. It is the same in each process. */
uint64_t vgpu_export_key_of(const void *bytes, uint64_t count, bool multicast);
bool vgpu_export_key_is_multicast(uint64_t key);

/* False: the kernel supports no lock on such a file. */
bool vgpu_export_key_write(int fd, uint64_t key);
/* The descriptor's key. 0: it has none, or /proc does not show it. */
uint64_t vgpu_export_key_read(int fd);
