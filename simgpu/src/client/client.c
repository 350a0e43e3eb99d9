/*
 * Links to the GPUs: see client.h.
 *
 * A connection carries one request at a time, under the link's mutex. So a thread that waits for a
 * slow answer delays only other threads of its process that use the same GPU. Signals do not
 * interrupt a call: EINTR is retried, SIGPIPE is not raised.
 */
#define _GNU_SOURCE
#include "client/client.h"

#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define SIM_DEVICE_DIR	  "/dev/simgpu"
#define SIM_FIRMWARE_DIR  "/lib/firmware/nvidia"
#define SIM_FIRMWARE	  "gsp_simgpu"
#define SIM_REQUEST_BYTES sizeof(struct sim_limits) /* largest payload of a request */

typedef char socket_path[sizeof(((struct sockaddr_un *)NULL)->sun_path)];

struct sim_link {
	struct sim_gpu gpu;
	pthread_mutex_t mutex;
	pid_t owner;
	int fd;
	bool broken;
	struct sim_shared *shared; /* NULL: mapping it failed */
};

static bool send_all(int fd, const void *data, size_t bytes)
{
	const char *at = data;

	while (bytes) {
		ssize_t sent = send(fd, at, bytes, MSG_NOSIGNAL);

		if (sent < 0 && errno == EINTR)
			continue;
		if (sent <= 0)
			return false;
		at += sent;
		bytes -= (size_t)sent;
	}
	return true;
}

static bool recv_all(int fd, void *data, size_t bytes)
{
	char *at = data;

	while (bytes) {
		ssize_t received = recv(fd, at, bytes, 0);

		if (received < 0 && errno == EINTR)
			continue;
		if (received <= 0)
			return false;
		at += received;
		bytes -= (size_t)received;
	}
	return true;
}

/*
 * Receives a reply's first byte, and the descriptor that may accompany it. The kernel delivers a
 * descriptor together with the byte that it was sent with. So this call cannot miss the descriptor.
 */
static bool recv_descriptor(int fd, char *first, int *descriptor)
{
	union {
		struct cmsghdr head;
		char bytes[CMSG_SPACE(sizeof(int))];
	} control = {0};
	struct iovec part = {.iov_base = first, .iov_len = 1};
	struct msghdr message = {.msg_iov = &part,
				 .msg_iovlen = 1,
				 .msg_control = &control,
				 .msg_controllen = sizeof(control)};
	struct cmsghdr *rights;
	ssize_t received;

	do
		received = recvmsg(fd, &message, MSG_CMSG_CLOEXEC);
	while (received < 0 && errno == EINTR);
	if (received != 1)
		return false;
	rights = CMSG_FIRSTHDR(&message);
	*descriptor = -1;
	if (rights && rights->cmsg_level == SOL_SOCKET && rights->cmsg_type == SCM_RIGHTS)
		memcpy(descriptor, CMSG_DATA(rights), sizeof(*descriptor));
	return true;
}

/* Head and payload are sent together, so that the daemon wakes only once. */
static bool send_request(int fd, enum sim_op op, const void *req, uint32_t n)
{
	char data[sizeof(struct sim_request) + SIM_REQUEST_BYTES];
	struct sim_request head = {.op = op, .bytes = n};

	if (n > SIM_REQUEST_BYTES)
		return false;
	memcpy(data, &head, sizeof(head));
	if (n)
		memcpy(data + sizeof(head), req, n);
	return send_all(fd, data, sizeof(head) + n);
}

static bool exchange(struct sim_link *link, enum sim_op op, const void *req, uint32_t n,
		     struct sim_reply *head, void *reply, uint32_t cap)
{
	return send_request(link->fd, op, req, n) && recv_all(link->fd, head, sizeof(*head)) &&
	       head->bytes <= cap && head->status <= SIM_NO_PERMISSION &&
	       recv_all(link->fd, reply, head->bytes);
}

enum sim_status sim_call(struct sim_link *link, enum sim_op op, const void *req, uint32_t n,
			 void *reply, uint32_t cap, uint32_t *got)
{
	enum sim_status status = SIM_GPU_LOST;
	struct sim_reply head = {0};

	if (sim_link_mine(link)) {
		pthread_mutex_lock(&link->mutex);
		if (!link->broken) {
			bool good = exchange(link, op, req, n, &head, reply, cap) &&
				    (got || head.status != SIM_OK || head.bytes == cap);

			if (good)
				status = (enum sim_status)head.status;
			__atomic_store_n(&link->broken, !good, __ATOMIC_RELAXED);
		}
		pthread_mutex_unlock(&link->mutex);
	}
	if (got)
		*got = status == SIM_OK ? head.bytes : 0;
	return status;
}

static int connect_to(const char *path)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), failed;

	memcpy(address.sun_path, path, strlen(path) + 1);
	do
		failed = connect(fd, (struct sockaddr *)&address, sizeof(address));
	while (failed && errno == EINTR);
	if (failed && fd >= 0)
		close(fd);
	return failed ? -1 : fd;
}

static struct sim_shared *map_shared(int descriptor)
{
	void *memory = MAP_FAILED;

	if (descriptor >= 0) {
		memory = mmap(NULL, sizeof(struct sim_shared), PROT_READ | PROT_WRITE, MAP_SHARED,
			      descriptor, 0);
		close(descriptor);
	}
	return memory == MAP_FAILED ? NULL : memory;
}

static void unmap_shared(struct sim_link *link)
{
	if (link->shared)
		munmap(link->shared, sizeof(*link->shared));
}

/* Receives the GPU's description and the memory that its clients share. */
static bool greet(struct sim_link *link, enum sim_role role)
{
	struct sim_hello hello = {.protocol = SIM_PROTOCOL, .role = role};
	struct timespec now;
	struct sim_reply head;
	int descriptor;

	clock_gettime(CLOCK_MONOTONIC, &now);
	hello.now_ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
	if (!send_request(link->fd, SIM_HELLO, &hello, sizeof(hello)) ||
	    !recv_descriptor(link->fd, (char *)&head, &descriptor))
		return false;
	link->shared = map_shared(descriptor);
	return recv_all(link->fd, (char *)&head + 1, sizeof(head) - 1) && head.status == SIM_OK &&
	       head.bytes == sizeof(link->gpu) && recv_all(link->fd, &link->gpu, sizeof(link->gpu));
}

static struct sim_link *open_link(const char *path, enum sim_role role)
{
	struct sim_link *link;
	int fd = connect_to(path);

	if (fd < 0)
		return NULL;
	link = calloc(1, sizeof(*link));
	if (!link) {
		close(fd);
		return NULL;
	}
	link->fd = fd;
	link->owner = getpid();
	pthread_mutex_init(&link->mutex, NULL);
	if (!greet(link, role)) {
		unmap_shared(link);
		close(fd);
		free(link);
		return NULL;
	}
	link->gpu.name[sizeof(link->gpu.name) - 1] = '\0';
	link->gpu.driver_version[sizeof(link->gpu.driver_version) - 1] = '\0';
	return link;
}

static uint64_t bus_address(const struct sim_gpu *gpu)
{
	return (uint64_t)gpu->pci_domain << 32 | gpu->pci_bus;
}

static int by_bus(const void *left, const void *right)
{
	const struct sim_link *const *a = left;
	const struct sim_link *const *b = right;
	uint64_t first = bus_address(&(*a)->gpu), second = bus_address(&(*b)->gpu);

	return (first > second) - (first < second);
}

/* A container sees all GPUs' firmware files. It may use the GPUs whose device nodes it has. */
static bool has_node(const char *file)
{
	char node[32];

	(void)snprintf(node, sizeof(node), "/dev/nvidia%ld",
		       strtol(file + strlen(SIM_FIRMWARE), NULL, 10));
	return access(node, F_OK) == 0;
}

static bool is_socket(const char *file, bool firmware)
{
	const char *dot = strrchr(file, '.');

	if (firmware)
		return strncmp(file, SIM_FIRMWARE, strlen(SIM_FIRMWARE)) == 0 && has_node(file);
	return dot && strcmp(dot, ".sock") == 0;
}

/* Returns false if the path is too long for a socket. */
static bool join(socket_path path, const char *directory, const char *name)
{
	return (size_t)snprintf(path, sizeof(socket_path), "%s/%s", directory, name) <
	       sizeof(socket_path);
}

/* Opens links to the sockets of a directory. Returns `count` plus their number. */
static int open_all(struct sim_link **links, int count, int cap, enum sim_role role,
		    const char *directory, bool firmware)
{
	struct dirent *entry;
	socket_path path;
	DIR *dir = opendir(directory);

	while (dir && count < cap && (entry = readdir(dir))) {
		if (!is_socket(entry->d_name, firmware) || !join(path, directory, entry->d_name))
			continue;
		links[count] = open_link(path, role);
		count += links[count] != NULL;
	}
	if (dir)
		closedir(dir);
	return count;
}

/* Searches the firmware directory of each driver version. */
static int open_firmware(struct sim_link **links, int cap, enum sim_role role)
{
	struct dirent *entry;
	socket_path path;
	DIR *dir = opendir(SIM_FIRMWARE_DIR);
	int count = 0;

	while (dir && (entry = readdir(dir)))
		if (entry->d_name[0] != '.' && join(path, SIM_FIRMWARE_DIR, entry->d_name))
			count = open_all(links, count, cap, role, path, true);
	if (dir)
		closedir(dir);
	return count;
}

int sim_links_open(struct sim_link **links, int cap, enum sim_role role)
{
	const char *base = getenv("SIMGPU_DIR");
	socket_path directory = SIM_DEVICE_DIR;
	int count;

	if (base && !join(directory, base, "gpus"))
		return 0;
	count = open_all(links, 0, cap, role, directory, false);
	if (!count && !base)
		count = open_firmware(links, cap, role);
	if (count)
		qsort(links, (size_t)count, sizeof(*links), by_bus);
	return count;
}

void sim_links_close(struct sim_link **links, int count)
{
	for (int i = 0; i < count; i++) {
		/* If a child closes its copy, the parent's connection stays open. The child does
		 * not destroy the copied mutex, which a thread of the parent may have locked. */
		close(links[i]->fd);
		unmap_shared(links[i]);
		if (sim_link_mine(links[i]))
			pthread_mutex_destroy(&links[i]->mutex);
		free(links[i]);
		links[i] = NULL;
	}
}

const struct sim_gpu *sim_link_gpu(const struct sim_link *link)
{
	return &link->gpu;
}

uint32_t sim_link_faults(const struct sim_link *link)
{
	return link->shared ? __atomic_load_n(&link->shared->board.armed, __ATOMIC_RELAXED) : 0;
}

struct sim_shared *sim_link_shared(const struct sim_link *link)
{
	return link->shared;
}

/* The daemon only answers requests, so an unread byte is the reply to another thread. */
static bool daemon_runs(const struct sim_link *link)
{
	char byte;
	ssize_t seen = recv(link->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);

	return seen > 0 || (seen < 0 && (errno == EAGAIN || errno == EINTR));
}

bool sim_link_alive(const struct sim_link *link)
{
	return !__atomic_load_n(&link->broken, __ATOMIC_RELAXED) && link->shared &&
	       !__atomic_load_n(&link->shared->board.lost, __ATOMIC_RELAXED) && daemon_runs(link);
}

bool sim_link_mine(const struct sim_link *link)
{
	return link->owner == getpid();
}
