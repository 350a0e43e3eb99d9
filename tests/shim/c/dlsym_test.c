/*
 * A program that looks names up in every way there is and prints which object each answer lies in.
 *
 *	vgpu-dlsym-test LOOKUP...	each prints one line: LOOKUP file-name-of-the-object | null
 *
 *	open:LIB, global:LIB		dlopen it, RTLD_LOCAL or RTLD_GLOBAL; last one is the handle
 *	deep:LIB			the same with RTLD_DEEPBIND
 *	apart:LIB			dlmopen it into a namespace of its own; prints which
 *	close				dlclose the last one
 *	default:NAME next:NAME handle:NAME self:NAME	dlsym with that handle
 *	vdefault:NAME vhandle:NAME	dlvsym likewise, version GLIBC_2.2.5
 *	private-next private-default	what the private library gets when it asks for itself
 *	private-driver:LIB		what it gets when it opens the driver LIB and looks there
 *	error				is dlerror() set: error yes | no
 *	call:NAME			call it (as int f(void *, size_t)) through the handle;
 * prints the code
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
	static const char version[] = "GLIBC_2.2.5";

	if (strcmp(way, "default") == 0)
		return dlsym(RTLD_DEFAULT, name);
	if (strcmp(way, "next") == 0)
		return dlsym(RTLD_NEXT, name);
	if (strcmp(way, "handle") == 0)
		return dlsym(handle, name);
	if (strcmp(way, "self") == 0)
		return dlsym(dlopen(NULL, RTLD_NOW), name);
	if (strcmp(way, "vdefault") == 0)
		return dlvsym(RTLD_DEFAULT, name, version);
	if (strcmp(way, "vhandle") == 0)
		return dlvsym(handle, name, version);
	if (strcmp(way, "private-next") == 0 || strcmp(way, "private-default") == 0) {
		void *(*ask)(void) = (void *(*)(void))dlsym(
		    handle, strcmp(way, "private-next") == 0 ? "private_next" : "private_default");
		return ask();
	}
	if (strcmp(way, "private-driver") == 0) {
		void *(*ask)(const char *) =
		    (void *(*)(const char *))dlsym(handle, "private_driver");
		return ask(name);
	}
	fprintf(stderr, "unknown lookup %s\n", way);
	exit(2);
}

static int is_opening(const char *way)
{
	return strcmp(way, "open") == 0 || strcmp(way, "global") == 0 || strcmp(way, "deep") == 0 ||
	       strcmp(way, "apart") == 0;
}

static void *open_library(const char *way, const char *name)
{
	void *handle;
	Lmid_t namespace = -7;

	if (strcmp(way, "apart") != 0)
		return dlopen(name, RTLD_NOW | (strcmp(way, "global") == 0 ? RTLD_GLOBAL
						: strcmp(way, "deep") == 0 ? RTLD_DEEPBIND
									   : RTLD_LOCAL));
	handle = dlmopen(LM_ID_NEWLM, name, RTLD_NOW);
	if (handle && dlinfo(handle, RTLD_DI_LMID, &namespace) == 0)
		printf("%s %s\n", way, namespace == LM_ID_BASE ? "base" : "apart");
	return handle;
}

int main(int argc, char **argv)
{
	void *handle = NULL;

	for (int i = 1; i < argc; i++) {
		char *name = strchr(argv[i], ':');
		size_t length = name ? (size_t)(name - argv[i]) : strlen(argv[i]);
		char way[32] = "";
		if (length >= sizeof(way))
			return 2;
		memcpy(way, argv[i], length);
		name = name ? name + 1 : "";
		if (is_opening(way)) {
			handle = open_library(way, name);
			if (!handle) {
				fprintf(stderr, "%s\n", dlerror());
				return 1;
			}
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
