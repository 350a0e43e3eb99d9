/*
 * A process's access to the simulated GPUs: one link per GPU, requests and replies over it.
 *
 * Used by both libraries, exported by neither. Finds GPUs as a program finds device files: by their
 * sockets. Independent of CUDA and NVML; each library translates statuses for its programs.
 */
#ifndef SIMGPU_CLIENT_H
#define SIMGPU_CLIENT_H

#include <stdbool.h>
#include <stdint.h>

#include "client/board.h"
#include "client/wire.h"

#define SIM_MAX_GPUS 64

struct sim_link;

/*
 * Connects to every GPU that can be reached, in the order of their PCI addresses: the *.sock files
 * of $SIMGPU_DIR/GPUs where SIMGPU_DIR is set, else of /dev/simgpu. Where that has none, the files
 * gsp_simgpuN.bin of the driver's firmware, which NVIDIA's toolkit gives to each container, and of
 * these the GPUs whose device node is here. Returns how many were stored in `links`; 0 where there
 * is no GPU.
 */
int sim_links_open(struct sim_link **links, int cap, enum sim_role role);

/* Closes the links and frees them. In a fork child the parent's connection is not touched. */
void sim_links_close(struct sim_link **links, int count);

/* How many faults by a call's name are armed on the GPU; one read of memory. */
uint32_t sim_link_faults(const struct sim_link *link);

/* The memory that the GPU's clients share, or NULL: this process cannot use the GPU's engine. */
struct sim_shared *sim_link_shared(const struct sim_link *link);

/* True if the GPU still answers; sends no request. */
bool sim_link_alive(const struct sim_link *link);

/* The GPU's description from when the link was opened; valid as long as the link. */
const struct sim_gpu *sim_link_gpu(const struct sim_link *link);

/*
 * True in the process that opened the link, false in its fork children. A child must open links of
 * its own; sim_call over the parent's answers SIM_GPU_LOST and sends nothing.
 */
bool sim_link_mine(const struct sim_link *link);

/*
 * One request, one reply; thread safe, and blocks no longer than the daemon takes. `n` bytes at
 * `req` are sent; the reply is stored, and `*got` (may be NULL) is its size, at most `cap`; without
 * `got` it must be exactly that. If the daemon has exited, or its answer is malformed, this and
 * every later call on this link returns SIM_GPU_LOST.
 */
enum sim_status sim_call(struct sim_link *link, enum sim_op op, const void *req, uint32_t n,
			 void *reply, uint32_t cap, uint32_t *got);

#endif
