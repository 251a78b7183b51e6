// SPDX-License-Identifier: Apache-2.0
// Libraries of the system, opened without an imported symbol. The dynamic loader has mapped and
// initialised libc beside `sov` (docs/ARCHITECTURE.md); its dlopen is found where the loader left
// word of what it mapped:
//
//     auxiliary vector  AT_PHDR, AT_PHNUM: the program headers of this program
//     PT_DYNAMIC        our dynamic section; none in a static program
//     DT_DEBUG          struct loader_debug, filled by the loader
//     .first            the list of mapped objects, in the order in which symbols are searched
//     DT_GNU_HASH       of each object: its exported symbols by name
//
// The file holds no state. What is read here was made by the loader and is trusted; every walk has
// a bound all the same, so that damage ends in a message.
//
// What calling into libc from here rests on:
//
// D1. The loader, not __libc_start_main, makes the first thread's thread-local storage, stack guard
//     and errno, and runs libc's constructors with arguments and environment, before it jumps to
//     sov_main. Checked with glibc 2.36. Destructors never run: the program ends by exit_group.
// D2. Only the first thread calls (P5 of platform.h). Threads of linux.c share its fs register, so
//     that an errno, a malloc cache or a stack guard of theirs would be the first thread's.
//     Threads that a library makes are made by libc, with storage of their own.
// D3. Calls go out with the stack a multiple of 16 bytes, as sov_main leaves it and compiled code
//     keeps it, and with the whole stack of the first thread (8 MiB as a rule) below them.
// D4. Nothing here depends on libc's own state, so that either side may be in the middle of
//     anything except, by P5, of a call of the other.
// D5. Needs a libc that itself has dlopen: glibc 2.34 (2021) or newer. Older ones keep it in a
//     library that nobody has mapped.
#include "freestanding/mem.h"
#include "freestanding/text.h"
#include "platform/linux_start.h"
#include "platform/platform.h"

#define OBJECTS_MAX 4096 // mapped by the loader before a program starts
#define CHAIN_MAX 65536  // symbols of one hash bucket
#define DYNAMIC_MAX 1024 // entries of a dynamic section

#define AT_PHDR 3
#define AT_PHNUM 5
struct linux_auxiliary {
    u64 type;
    union {
        u64 value;
        const struct elf_segment *segments;
    };
};

// The layouts of the ELF-64 specification; the loader's by <link.h>.
#define PT_DYNAMIC 2
#define PT_PHDR 6
struct elf_segment {
    u32 type, flags;
    u64 file_off, address, physical, file_bytes, bytes, align;
};

#define DT_STRTAB 5
#define DT_SYMTAB 6
#define DT_DEBUG 21
#define DT_GNU_HASH 0x6ffffef5
#define DT_VERSYM 0x6ffffff0
struct elf_dynamic {
    i64 tag;
    union {
        u64 value;
        const u8 *address;
        const struct loader_debug *debug;
    };
};

#define SYMBOL_FUNCTION 2 // type, the low 4 bits of info
#define SYMBOL_HIDDEN_VERSION 0x8000
struct elf_symbol {
    u32 name;
    u8 info, other;
    u16 section; // 0: not defined here
    u64 value, bytes;
};

struct loader_object {
    const u8 *base; // what is added to the addresses in its file
    const char *path;
    const struct elf_dynamic *dynamic;
    const struct loader_object *next, *previous;
};
struct loader_debug {
    int version;
    const struct loader_object *first;
};
static_assert(sizeof(struct elf_segment) == 56 && sizeof(struct elf_dynamic) == 16 &&
                  sizeof(struct elf_symbol) == 24 && offsetof(struct loader_object, next) == 24 &&
                  offsetof(struct loader_debug, first) == 8,
              "the layouts of ELF and of the loader");

// What a hash table begins with; then come bloom words u64 [n_bloom], buckets u32 [n_buckets] and
// one chain word for each symbol from first_symbol on: its hash, bit 0 set at the end of a bucket.
struct gnu_hash {
    u32 n_buckets, first_symbol, n_bloom, bloom_shift;
};

// The dynamic section of this program, or NULL in a static one.
static const struct elf_dynamic *own_dynamic(const struct linux_auxiliary *auxiliary) {
    const struct elf_segment *segments = NULL;
    u64 n_segments = 0;
    for (; auxiliary->type != 0; auxiliary++) {
        if (auxiliary->type == AT_PHDR) segments = auxiliary->segments;
        if (auxiliary->type == AT_PHNUM) n_segments = auxiliary->value;
    }
    const struct elf_segment *headers = NULL, *dynamic = NULL;
    for (u64 i = 0; segments != NULL && i < n_segments; i++) {
        if (segments[i].type == PT_PHDR) headers = &segments[i];
        if (segments[i].type == PT_DYNAMIC) dynamic = &segments[i];
    }
    if (headers == NULL || dynamic == NULL) return NULL;
    const u8 *base = (const u8 *)segments - headers->address;
    return (const struct elf_dynamic *)(const void *)(base + dynamic->address);
}

static const struct elf_dynamic *dynamic_entry(const struct elf_dynamic *dynamic, i64 tag) {
    for (u32 i = 0; i < DYNAMIC_MAX && dynamic[i].tag != 0; i++) {
        if (dynamic[i].tag == tag) return &dynamic[i];
    }
    return NULL;
}

// A table of an object. The loader has made the addresses absolute, except in sections that it
// cannot write, as that of the kernel's own object.
static const void *table_of(const struct loader_object *object, i64 tag) {
    const struct elf_dynamic *entry = dynamic_entry(object->dynamic, tag);
    if (entry == NULL) return NULL;
    return (usize)entry->address < (usize)object->base ? object->base + entry->value
                                                       : entry->address;
}

static u32 gnu_hash_of(const char *name) {
    u32 hash = 5381;
    for (; *name != 0; name++) hash = hash * 33 + (u8)*name;
    return hash;
}

// The function `name` that an object exports, in its default version; NULL when it has none.
static const u8 *object_function(const struct loader_object *object, const char *name) {
    const struct gnu_hash *table = table_of(object, DT_GNU_HASH);
    const struct elf_symbol *symbols = table_of(object, DT_SYMTAB);
    const char *strings = table_of(object, DT_STRTAB);
    const u16 *versions = table_of(object, DT_VERSYM);
    if (table == NULL || symbols == NULL || strings == NULL || table->n_buckets == 0) return NULL;
    const u32 *buckets = (const u32 *)(const void *)(table + 1) + 2 * (usize)table->n_bloom;
    const u32 *chain = buckets + table->n_buckets;
    u32 hash = gnu_hash_of(name);
    u32 symbol_idx = buckets[hash % table->n_buckets];
    if (symbol_idx < table->first_symbol) return NULL; // an empty bucket
    for (u32 i = 0; i < CHAIN_MAX; i++, symbol_idx++) {
        u32 word = chain[symbol_idx - table->first_symbol];
        const struct elf_symbol *symbol = &symbols[symbol_idx];
        if ((word | 1) == (hash | 1) && (symbol->info & 15) == SYMBOL_FUNCTION &&
            symbol->section != 0 &&
            (versions == NULL || (versions[symbol_idx] & SYMBOL_HIDDEN_VERSION) == 0) &&
            str_equal(str_from_z(strings + symbol->name), str_from_z(name))) {
            return object->base + symbol->value;
        }
        if ((word & 1) != 0) break;
    }
    return NULL;
}

static const u8 *loaded_function(const struct loader_debug *debug, const char *name) {
    const struct loader_object *object = debug->first;
    for (u32 i = 0; i < OBJECTS_MAX && object != NULL; i++, object = object->next) {
        if (object->dynamic == NULL) continue;
        const u8 *address = object_function(object, name);
        if (address != NULL) return address;
    }
    return NULL;
}

// The loader's functions, found in the libc that it mapped.
struct loader {
    void *(*open)(const char *path, int mode);
    void *(*symbol)(void *handle, const char *name);
    char *(*error)(void);
};
#define RTLD_NOW 2 // RTLD_LOCAL is 0

static enum sov_status find_loader(const struct platform_start *start, const char *path,
                                   struct loader *loader, struct sov_fault *fault) {
    const struct elf_dynamic *dynamic = start->system == NULL ? NULL : own_dynamic(start->system);
    const struct elf_dynamic *debug = dynamic == NULL ? NULL : dynamic_entry(dynamic, DT_DEBUG);
    if (debug == NULL || debug->debug == NULL) {
        return fault_set(fault, SOV_ERR_STATE,
                         "library %s: this program is static and cannot open libraries; the "
                         "program \"sov\" can",
                         path);
    }
    const struct {
        const char *name;
        void *pointer;
    } wanted[] = {
        {"dlopen", &loader->open}, {"dlsym", &loader->symbol}, {"dlerror", &loader->error}};
    for (u32 i = 0; i < COUNT_OF(wanted); i++) {
        const u8 *address = loaded_function(debug->debug, wanted[i].name);
        if (address == NULL) {
            return fault_set(fault, SOV_ERR_UNSUPPORTED,
                             "library %s: the C library of this system has no %s; glibc 2.34 or "
                             "newer is needed",
                             path, wanted[i].name);
        }
        memcpy(wanted[i].pointer, &address, sizeof address);
    }
    return SOV_OK;
}

enum sov_status platform_library_open(const struct platform_start *start, const char *path,
                                      struct platform_library *library, struct sov_fault *fault) {
    struct loader loader = {0};
    enum sov_status status = find_loader(start, path, &loader, fault);
    if (status != SOV_OK) return status;
    assert(loader.open != NULL && loader.symbol != NULL && loader.error != NULL);
    u64 before = platform_signals_hold();
    void *handle = loader.open(path, RTLD_NOW);
    platform_signals_release(before);
    platform_float_control();
    if (handle == NULL) {
        const char *words = loader.error();
        return fault_set(fault, SOV_ERR_UNSUPPORTED, "library %s: %s", path,
                         words == NULL ? "the loader refuses it" : words);
    }
    *library = (struct platform_library){.path = path, .handle = handle, .find = loader.symbol};
    return SOV_OK;
}
