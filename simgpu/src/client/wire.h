/*
 * The protocol of the simulated driver's libraries and the daemon, over one stream socket per GPU.
 *
 * Each GPU has a pathname socket. A process has the GPU if it can open that socket. Each message is
 * a head and `bytes` of payload. Requests and replies alternate on a connection, which belongs to
 * one process. All fields are little-endian. The daemon's side is simgpu/wire.py. A test compares
 * the two.
 */
#ifndef SIMGPU_WIRE_H
#define SIMGPU_WIRE_H

#include <stdint.h>

#define SIM_PROTOCOL	  7
#define SIM_PAYLOAD_BYTES 65536 /* largest payload of a message */
#define SIM_CGROUP_BYTES  1024	/* longest path of a cgroup, with its NUL */

/* These values are the same for every simulated GPU. */
#define SIM_CLOCK_KHZ	     1410000
#define SIM_MEMORY_CLOCK_KHZ 1215000
#define SIM_BUS_WIDTH_BITS   5120
#define SIM_POWER_LIMIT_MW   400000

/* Operations: the request's payload -> the reply's payload; - is none. */
enum sim_op {
	SIM_HELLO = 1,		 /* sim_hello -> sim_gpu, with a descriptor (board.h) */
	SIM_CONTEXT_CREATE,	 /* - -> sim_context */
	SIM_CONTEXT_DESTROY,	 /* sim_id -> -; also frees the context's memory */
	SIM_MEMORY_ALLOC,	 /* sim_alloc -> sim_id */
	SIM_MEMORY_FREE,	 /* sim_id -> - */
	SIM_MEMORY_INFO,	 /* - -> sim_memory */
	SIM_PROCESSES,		 /* - -> array of sim_process */
	SIM_UTILIZATION,	 /* - -> sim_utilization */
	SIM_PROCESS_UTILIZATION, /* - -> array of sim_process_utilization */
	SIM_MEMORY_EXPORT,	 /* sim_id -> sim_id with the memory's token */
	SIM_MEMORY_IMPORT, /* sim_import -> sim_imported; valid while any client has the memory */
	SIM_FAULT,	   /* sim_call_name -> sim_fault: what must happen to the call */
	SIM_MEMORY_KEEP,   /* sim_keep -> -; the memory also exists while its file is locked */
	SIM_LIMITS_SET,	   /* sim_limits -> -; only for CAP_SYS_ADMIN */
	SIM_LIMITS_GET,	   /* sim_cgroup -> sim_limits_now */
};

enum sim_status {
	SIM_OK = 0,
	SIM_OUT_OF_MEMORY,
	SIM_INVALID_VALUE,
	SIM_NOT_FOUND, /* this process has no such context or allocation */
	SIM_NOT_SUPPORTED,
	SIM_GPU_LOST, /* the GPU fell off the bus (XID 79) */
	SIM_NO_PERMISSION,
};

struct sim_request {
	uint32_t op;
	uint32_t bytes;
};

struct sim_reply {
	uint32_t status;
	uint32_t bytes;
};

enum sim_role { SIM_ROLE_CUDA = 1, SIM_ROLE_NVML = 2 };

/* The daemon refuses a clock ahead of its own: an engine's time would stop for all other clients.
 */
struct sim_hello {
	uint32_t protocol;
	uint32_t role;
	uint64_t now_ns; /* CLOCK_MONOTONIC of the client, which may be in a time namespace */
};

struct sim_gpu {
	uint8_t uuid[16];
	char name[96];
	char driver_version[80]; /* "580.65.06" */
	uint64_t memory_bytes;
	uint64_t granule_bytes;	      /* memory is charged in whole granules */
	uint64_t module_bytes;	      /* code size of a module without a stated size */
	uint32_t cuda_version;	      /* 13000 */
	uint32_t minor;		      /* the GPU's number on the host */
	uint32_t pci_domain, pci_bus; /* the GPU is device 0 on this bus */
	uint32_t capability_major, multiprocessors;
	uint8_t mig_uuid[16]; /* the only MIG instance's, which has the whole GPU; zeros: no MIG */
	uint32_t connection;  /* this connection's number, never 0 */
	uint32_t reserved;
};

struct sim_id {
	uint64_t id;
};

struct sim_context {
	uint64_t id;
	uint32_t channel; /* the context's channel in the engine (board.h) */
	uint32_t reserved;
};

struct sim_alloc {
	uint64_t context; /* this process's id of a context; 0: the process has the memory */
	uint64_t bytes;
};

struct sim_import {
	uint64_t context; /* as in struct sim_alloc */
	uint64_t token;	  /* a process's reply to SIM_MEMORY_EXPORT on this GPU */
};

struct sim_keep {
	uint64_t id;
	uint32_t fd; /* this process's descriptor of a file that it has locked */
	uint32_t reserved;
};

struct sim_imported {
	uint64_t id, bytes; /* this process's id of the memory, and the charged bytes */
};

struct sim_memory {
	uint64_t total_bytes, free_bytes;
};

/* A cgroup is the absolute path of its directory, padded with zeros. */
struct sim_limits {
	char cgroup[SIM_CGROUP_BYTES];
	uint64_t soft_bytes, hard_bytes; /* 0 and UINT64_MAX: no limit */
};

struct sim_cgroup {
	char cgroup[SIM_CGROUP_BYTES];
};

struct sim_limits_now {
	uint64_t soft_bytes, hard_bytes, used_bytes;
};

struct sim_process {
	uint64_t bytes;
	uint32_t pid; /* in the daemon's PID namespace */
	uint32_t contexts;
};

struct sim_call_name {
	char name[64]; /* the exported name, padded with zeros */
};

struct sim_fault {
	uint64_t latency_ns; /* wait before the call */
	int32_t code;	     /* the code to return; 0: run the call */
	uint32_t reserved;
};

struct sim_utilization {
	uint32_t gpu_percent, memory_percent; /* averages of the last second */
};

struct sim_process_utilization {
	uint32_t pid;
	uint32_t gpu_percent; /* average of the last second */
};

#endif
