#include "loader/objects.h"

#include <limits.h>
#include <stddef.h>
#include <sys/auxv.h>

#include "loader/fork_delay.h"
#include "os/text.h"

static const char self = 0; /* its address is in this library */

/* A value in an object's dynamic section is a pointer in glibc, and an offset in musl and in the
 * vDSO. So a value that is an address inside the object is a pointer, and any other value is an
 * offset. */
static const void *dynamic_pointer(const struct vgpu_object *object, uintptr_t value)
{
	bool relocated = value >= object->low && value < object->high;
	return (const void *)(relocated ? value : object->base + value);
}

static bool read_dynamic(struct vgpu_object *out, const ElfW(Dyn) * dynamic)
{
	const ElfW(Dyn) *soname_entry = NULL;

	for (; dynamic->d_tag != DT_NULL; dynamic++) {
		if (dynamic->d_tag == DT_SYMTAB)
			out->symbols = dynamic_pointer(out, dynamic->d_un.d_ptr);
		else if (dynamic->d_tag == DT_STRTAB)
			out->strings = dynamic_pointer(out, dynamic->d_un.d_ptr);
		else if (dynamic->d_tag == DT_GNU_HASH)
			out->gnu_hash = dynamic_pointer(out, dynamic->d_un.d_ptr);
		else if (dynamic->d_tag == DT_HASH)
			out->sysv_hash = dynamic_pointer(out, dynamic->d_un.d_ptr);
		else if (dynamic->d_tag == DT_SONAME)
			soname_entry = dynamic;
	}
	if (!out->symbols || !out->strings || (!out->gnu_hash && !out->sysv_hash))
		return false;
	if (soname_entry)
		out->soname = out->strings + soname_entry->d_un.d_val;
	return true;
}

static bool read_object(const struct dl_phdr_info *info, struct vgpu_object *out)
{
	const ElfW(Dyn) *dynamic = NULL;

	*out = (struct vgpu_object){.base = info->dlpi_addr,
				    .low = UINTPTR_MAX,
				    .soname = "",
				    .path = info->dlpi_name ? info->dlpi_name : ""};
	for (int i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *segment = &info->dlpi_phdr[i];
		uintptr_t start = info->dlpi_addr + segment->p_vaddr;
		if (segment->p_type == PT_DYNAMIC)
			dynamic = (const ElfW(Dyn) *)start;
		if (segment->p_type != PT_LOAD)
			continue;
		if (start < out->low)
			out->low = start;
		if (start + segment->p_memsz > out->high)
			out->high = start + segment->p_memsz;
	}
	return dynamic && read_dynamic(out, dynamic);
}

static bool contains(const struct vgpu_object *object, const void *address)
{
	return (uintptr_t)address >= object->low && (uintptr_t)address < object->high;
}

/* A search for an object. Each condition that is set must hold. */
struct query {
	const char *soname;
	const void *address;
	const char *definition;
	int first, end;
	int order; /* position of the object that is looked at */
	struct vgpu_object *found;
	void *function;
};

static int match(struct dl_phdr_info *info, size_t bytes, void *data)
{
	struct query *query = data;
	struct vgpu_object object;
	int order = query->order++;

	(void)bytes;
	if (order < query->first || order >= query->end || !read_object(info, &object))
		return 0;
	object.order = order;
	if (query->address ? !contains(&object, query->address) : contains(&object, &self))
		return 0;
	if (query->soname && !vgpu_text_same(query->soname, object.soname))
		return 0;
	if (query->definition) {
		query->function = vgpu_object_function(&object, query->definition);
		if (!query->function)
			return 0;
	}
	*query->found = object;
	return 1;
}

typedef int iterate_function(int (*)(struct dl_phdr_info *, size_t, void *), void *);

/* The list of loaded objects that the loader keeps for debuggers. The objects at its head, loaded
 * with the program, do not change. */
static const struct link_map *first_loaded(void)
{
	const ElfW(Phdr) *segments = (const ElfW(Phdr) *)getauxval(AT_PHDR);
	const ElfW(Dyn) *dynamic = NULL;
	uintptr_t base = 0;
	bool placed = false;

	for (unsigned long i = 0; segments && i < getauxval(AT_PHNUM); i++) {
		if (segments[i].p_type == PT_PHDR) {
			base = (uintptr_t)segments - segments[i].p_vaddr;
			placed = true;
		}
		if (placed && segments[i].p_type == PT_DYNAMIC)
			dynamic = (const ElfW(Dyn) *)(base + segments[i].p_vaddr);
	}
	for (; dynamic && dynamic->d_tag != DT_NULL; dynamic++)
		if (dynamic->d_tag == DT_DEBUG && dynamic->d_un.d_ptr)
			return ((const struct r_debug *)dynamic->d_un.d_ptr)->r_map;
	return NULL;
}

bool vgpu_object_is_program(const void *handle)
{
	return handle && handle == first_loaded();
}

/* Read an object of the debuggers' list. The list does not have the object's end. */
static bool read_mapped(const struct link_map *map, struct vgpu_object *out)
{
	*out = (struct vgpu_object){.base = map->l_addr,
				    .low = map->l_addr,
				    .high = UINTPTR_MAX,
				    .soname = "",
				    .path = map->l_name ? map->l_name : ""};
	return map->l_ld && read_dynamic(out, map->l_ld);
}

/* glibc's own dl_iterate_phdr. A sanitizer may interpose the function. The sanitizer's version
 * cannot be called while the sanitizer looks up functions by this library's dlsym. */
static iterate_function *iterate(void)
{
	static iterate_function *found;
	iterate_function *own = __atomic_load_n(&found, __ATOMIC_RELAXED);
	struct vgpu_object object;

	for (const struct link_map *at = own ? NULL : first_loaded(); at && !own; at = at->l_next)
		if (read_mapped(at, &object) && vgpu_text_same(object.soname, "libc.so.6"))
			own = (iterate_function *)vgpu_object_function(&object, "dl_iterate_phdr");
	own = own ? own : dl_iterate_phdr;
	__atomic_store_n(&found, own, __ATOMIC_RELAXED);
	return own;
}

static int each(int (*look)(struct dl_phdr_info *, size_t, void *), void *data)
{
	int result;

	vgpu_fork_delay_begin();
	result = iterate()(look, data);
	vgpu_fork_delay_end();
	return result;
}

struct unchanged {
	vgpu_objects_use *use;
	void *data;
};

static int use_once(struct dl_phdr_info *info, size_t bytes, void *data)
{
	const struct unchanged *unchanged = data;

	(void)bytes;
	unchanged->use((struct vgpu_object_changes){info->dlpi_adds, info->dlpi_subs},
		       unchanged->data);
	return 1;
}

void vgpu_objects_while_unchanged(vgpu_objects_use *use, void *data)
{
	struct unchanged unchanged = {use, data};
	each(use_once, &unchanged);
}

bool vgpu_object_find(const char *soname, const char *name, struct vgpu_object *out)
{
	struct query query = {.soname = soname, .definition = name, .end = INT_MAX, .found = out};
	return each(match, &query) == 1;
}

bool vgpu_object_by_address(const void *address, struct vgpu_object *out)
{
	struct query query = {.address = address, .end = INT_MAX, .found = out};
	return address && each(match, &query) == 1;
}

bool vgpu_object_ourselves(struct vgpu_object *out)
{
	return vgpu_object_by_address(&self, out);
}

void *vgpu_definition_in(const char *name, int first, int end)
{
	struct vgpu_object object;
	struct query query = {.definition = name, .first = first, .end = end, .found = &object};
	return each(match, &query) == 1 ? query.function : NULL;
}

/* True for a defined, exported function of that name. IFUNCs are excluded: they need a resolver. */
static bool is_definition(const struct vgpu_object *object, uint32_t index, const char *name)
{
	const ElfW(Sym) *symbol = &object->symbols[index];
	unsigned int type = ELF64_ST_TYPE(symbol->st_info);
	unsigned int binding = ELF64_ST_BIND(symbol->st_info);

	return symbol->st_shndx != SHN_UNDEF && (type == STT_FUNC || type == STT_NOTYPE) &&
	       (binding == STB_GLOBAL || binding == STB_WEAK) &&
	       vgpu_text_same(object->strings + symbol->st_name, name);
}

static uint32_t find_gnu(const struct vgpu_object *object, const char *name)
{
	const uint32_t *table = object->gnu_hash;
	uint32_t bucket_count = table[0], first_symbol = table[1], bloom_words = table[2];
	const uint32_t *buckets = table + 4 + bloom_words * (sizeof(ElfW(Addr)) / sizeof(uint32_t));
	const uint32_t *chains = buckets + bucket_count;
	uint32_t hash = 5381;

	for (const char *at = name; *at; at++)
		hash = hash * 33 + (unsigned char)*at;
	uint32_t index = bucket_count ? buckets[hash % bucket_count] : 0;
	if (index < first_symbol || index == 0)
		return 0;
	for (;; index++) {
		uint32_t entry = chains[index - first_symbol];
		if ((entry | 1) == (hash | 1) && is_definition(object, index, name))
			return index;
		if (entry & 1)
			return 0;
	}
}

static uint32_t find_sysv(const struct vgpu_object *object, const char *name)
{
	const uint32_t *buckets = object->sysv_hash + 2;
	uint32_t bucket_count = object->sysv_hash[0];
	const uint32_t *chains = buckets + bucket_count;
	uint32_t hash = 0;

	for (const char *at = name; *at; at++) {
		hash = (hash << 4) + (unsigned char)*at;
		uint32_t top = hash & 0xf0000000;
		hash = (hash ^ (top >> 24)) & ~top;
	}
	uint32_t index = bucket_count ? buckets[hash % bucket_count] : 0;
	while (index && !is_definition(object, index, name))
		index = chains[index];
	return index;
}

void *vgpu_object_function(const struct vgpu_object *object, const char *name)
{
	uint32_t index = object->gnu_hash ? find_gnu(object, name) : find_sysv(object, name);
	return index ? (void *)(object->base + object->symbols[index].st_value) : NULL;
}
