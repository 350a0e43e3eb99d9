/*
 * A program that looks names up in every way there is and prints which object each answer lies in.
 *
 *	vgpu-dlsym-test LOOKUP...	each prints one line: LOOKUP file-name-of-the-object | null
 *
 *	open:LIB, global:LIB		dlopen it, RTLD_LOCAL or RTLD_GLOBAL; "handle" is the last
 *	deep:LIB			the same with RTLD_DEEPBIND
 *	apart:LIB			dlmopen it into a new namespace; prints which one it got
 *	close				dlclose the last handle
 *	default:NAME next:NAME handle:NAME self:NAME	dlsym with that handle
 *	vdefault:NAME vhandle:NAME	dlvsym likewise, version GLIBC_2.2.5
 *	private_next private_default	look up from within the private library
 *	private_driver:LIB		open the driver LIB there, and look up in it
 *	error				print whether dlerror() is set: error yes | no
 *	call:NAME			call it (as int f(void *, size_t)) through the handle;
 * prints the code
 */
#define _GNU_SOURCE
#include <dlfcn.h>

#include "test.h"

static const char *where(void *address)
{
	Dl_info info;
	const char *slash;

	if (!address)
		return "null";
	if (!dladdr(address, &info))
		return "nowhere";
	slash = strrchr(info.dli_fname, '/');
	return slash ? slash + 1 : info.dli_fname;
}

static void *look(void *handle, const char *way, const char *name)
{
	const char *from = way + (*way == 'v');
	void *(*ask)(const char *);

	if (strcmp(from, "default") == 0)
		handle = RTLD_DEFAULT;
	else if (strcmp(from, "next") == 0)
		handle = RTLD_NEXT;
	else if (strcmp(from, "self") == 0)
		handle = dlopen(NULL, RTLD_NOW);
	else if (strcmp(from, "handle") != 0) {
		ask = (void *(*)(const char *))dlsym(handle, way);
		MUST(ask);
		return ask(name);
	}
	return from == way ? dlsym(handle, name) : dlvsym(handle, name, "GLIBC_2.2.5");
}

/* Open a library. Returns NULL if `way` is not a way to open one. */
static void *open_library(const char *way, const char *name)
{
	void *handle = NULL;
	Lmid_t namespace = -7;

	if (strcmp(way, "open") == 0)
		handle = dlopen(name, RTLD_NOW);
	else if (strcmp(way, "global") == 0)
		handle = dlopen(name, RTLD_NOW | RTLD_GLOBAL);
	else if (strcmp(way, "deep") == 0)
		handle = dlopen(name, RTLD_NOW | RTLD_DEEPBIND);
	else if (strcmp(way, "apart") == 0)
		handle = dlmopen(LM_ID_NEWLM, name, RTLD_NOW);
	else
		return NULL;
	MUST(handle && dlinfo(handle, RTLD_DI_LMID, &namespace) == 0);
	if (strcmp(way, "apart") == 0)
		printf("%s %s\n", way, namespace == LM_ID_BASE ? "base" : "apart");
	return handle;
}

int main(int argc, char **argv)
{
	void *handle = NULL, *opened;
	char way[32];

	for (int i = 1; i < argc; i++) {
		size_t chars = strcspn(argv[i], ":");
		const char *name = argv[i] + chars + (argv[i][chars] == ':');

		snprintf(way, sizeof(way), "%.*s", (int)chars, argv[i]);
		opened = open_library(way, name);
		if (opened) {
			handle = opened;
		} else if (strcmp(way, "close") == 0) {
			dlclose(handle);
		} else if (strcmp(way, "error") == 0) {
			printf("error %s\n", dlerror() ? "yes" : "no");
		} else if (strcmp(way, "call") == 0) {
			unsigned long long out = 0;
			int (*function)(unsigned long long *, size_t) =
			    (int (*)(unsigned long long *, size_t))dlsym(handle, name);

			printf("%s %d\n", argv[i], function(&out, 512));
		} else {
			printf("%s %s\n", argv[i], where(look(handle, way, name)));
		}
	}
	return 0;
}
