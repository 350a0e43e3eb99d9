#include "region/directory.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "os/file.h"
#include "os/lock.h"

/* The source of the limits. It is decided once, and fork children inherit the decision. */
static struct {
	struct vgpu_lock lock;
	enum { UNDECIDED, NONE, FOUND, ENVIRONMENT } state;
	char path[200];
	struct vgpu_environment environment;
} directory;

static void decide(int state)
{
	__atomic_store_n(&directory.state, state, __ATOMIC_RELEASE);
}

static enum vgpu_result read_environment(struct vgpu_error *error)
{
	char *none[] = {NULL}; /* after clearenv there is no list */
	enum vgpu_result result =
	    vgpu_environment_parse(environ ? environ : none, &directory.environment, error);

	if (result == VGPU_OK)
		decide(ENVIRONMENT);
	else if (result == VGPU_UNMANAGED)
		decide(NONE);
	return result;
}

/* If the container's directory exists, even if it is unusable, the environment is ignored. */
static enum vgpu_result find_directory(struct vgpu_error *error)
{
	struct vgpu_file file;
	const char *path = VGPU_CONTAINER_DIR;

	if (!vgpu_file_at(path, &file) && errno == ENOENT) {
		path = getenv(VGPU_ENV_DIR);
		if (!path || !path[0])
			return read_environment(error);
	}
	if (strlen(path) >= sizeof(directory.path))
		return vgpu_fail(error, VGPU_GRANT_MISSING, ENAMETOOLONG, path);
	strcpy(directory.path, path);
	decide(FOUND);
	return VGPU_OK;
}

enum vgpu_result vgpu_directory_find(struct vgpu_error *error)
{
	enum vgpu_result result = VGPU_OK;

	if (__atomic_load_n(&directory.state, __ATOMIC_ACQUIRE) == UNDECIDED) {
		if (!vgpu_lock(&directory.lock))
			return vgpu_fail(error, VGPU_SYSTEM, EDEADLK, "");
		if (directory.state == UNDECIDED)
			result = find_directory(error);
		vgpu_unlock(&directory.lock);
	}
	if (result != VGPU_OK)
		return result;
	return directory.state == NONE ? vgpu_fail(error, VGPU_UNMANAGED, 0, "") : VGPU_OK;
}

void vgpu_directory_path(const char *file, char path[VGPU_PATH_BYTES])
{
	if (directory.state == ENVIRONMENT)
		snprintf(path, VGPU_PATH_BYTES, "%s", directory.environment.cache);
	else
		snprintf(path, VGPU_PATH_BYTES, "%s/%s", directory.path, file);
}

const struct vgpu_environment *vgpu_directory_environment(void)
{
	return __atomic_load_n(&directory.state, __ATOMIC_ACQUIRE) == ENVIRONMENT
		   ? &directory.environment
		   : NULL;
}
