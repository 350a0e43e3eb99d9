/*
 * A process's access to the simulated GPUs: one link per GPU, requests and replies over it.
 *
 * libcuda and NVML use it and do not export it. It finds GPUs by their sockets, as a real driver
 * does by device files. Independent of CUDA and NVML: each library translates the statuses.
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
 * Connects to every reachable GPU, in the order of their PCI addresses. GPUs are the *.sock files
 * of $SIMGPU_DIR/gpus if SIMGPU_DIR is set, else of /dev/simgpu. If /dev/simgpu has none, a GPU is
 * a file gsp_simgpuN.bin of the driver's firmware for which /dev/nvidiaN exists. (NVIDIA's toolkit
 * gives all firmware files to each container.) Returns how many links are stored in `links`.
 */
int sim_links_open(struct sim_link **links, int cap, enum sim_role role);

/* Closes and frees the links. In a fork child, the parent's connections stay open. */
void sim_links_close(struct sim_link **links, int count);

/* Returns how many faults of functions are armed on the GPU. It costs one read of memory. */
uint32_t sim_link_faults(const struct sim_link *link);

/* Returns the memory that the GPU's clients share, or NULL if this process could not map it. */
struct sim_shared *sim_link_shared(const struct sim_link *link);

/* Returns true if the GPU still answers. It sends no request. */
bool sim_link_alive(const struct sim_link *link);

/* Returns the GPU's description as of the link's opening. It is valid as long as the link. */
const struct sim_gpu *sim_link_gpu(const struct sim_link *link);

/*
 * True in the process that opened the link, false in its fork children. A child must open its own
 * links: on the parent's link, sim_call sends nothing and returns SIM_GPU_LOST.
 */
bool sim_link_mine(const struct sim_link *link);

/*
 * Sends a request with `n` bytes at `req`, and stores the reply. It is thread safe and waits only
 * for the daemon. `*got` is the size of the reply, at most `cap`. If `got` is NULL, the size must
 * be `cap`. If the daemon has exited or answers incorrectly, this and every later call on this link
 * returns SIM_GPU_LOST.
 */
enum sim_status sim_call(struct sim_link *link, enum sim_op op, const void *req, uint32_t n,
			 void *reply, uint32_t cap, uint32_t *got);

#endif
