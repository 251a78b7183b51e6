// SPDX-License-Identifier: Apache-2.0
// Everything this project asks of an operating system. One file per system implements it: linux.c
// by raw system calls, hosted.c by a C library (tests, sanitizers). Nothing else in src/ talks to
// the system.
//
// P1. No function allocates behind the caller's back; memory comes from platform_memory_map only.
// P2. Interrupted system calls are repeated; short reads and writes are continued.
// P3. A failing call fills the fault with the name of the operation, the file and the system's
//     error name ("open model.gguf: ENOENT (no such file or directory)").
// P4. Any thread may call any function unless it says otherwise.
#pragma once
#include "freestanding/status.h"

// --- start and end ---
// The program's arguments and environment, in memory that lives for ever.
struct platform_start {
    u32 n_args; // args[0] is the program's name
    const char *const *args;
    const char *const *environment; // "NAME=value", NULL at the end
    const void *system;             // of the platform's own: what platform_library_open needs
};

// Every program defines this; the platform calls it on the first thread and exits with its result.
int program_main(const struct platform_start *start);

_Noreturn void platform_exit(int code);

// The value of an environment variable, or NULL.
const char *platform_environment(const struct platform_start *start, const char *name);

// --- files, by descriptor ---
#define PLATFORM_STDIN 0
#define PLATFORM_STDOUT 1
#define PLATFORM_STDERR 2

enum platform_open_mode {
    PLATFORM_OPEN_READ,
    PLATFORM_OPEN_CREATE, // write, emptied or made, mode 0644
    PLATFORM_OPEN_APPEND, // read and write behind the end, made when it is not there, mode 0644
    PLATFORM_OPEN_UPDATE, // read and write anywhere in a file that is there
    // As CREATE and APPEND; a file that is made has mode 0600.
    PLATFORM_OPEN_CREATE_PRIVATE,
    PLATFORM_OPEN_APPEND_PRIVATE,
};
enum sov_status platform_open(const char *path, enum platform_open_mode mode, int *descriptor,
                              struct sov_fault *fault) MUST_CHECK;
void platform_close(int descriptor);
// The size of a regular file; anything else (a pipe, a folder) is an error.
enum sov_status platform_file_size(int descriptor, u64 *bytes, struct sov_fault *fault) MUST_CHECK;
// Gives a file the permissions that another has.
enum sov_status platform_take_mode(int descriptor, int from, struct sov_fault *fault) MUST_CHECK;
// What tells one file from another, and from itself before a change. False: the system does not
// say.
struct platform_identity {
    u64 device, inode, bytes;
    u64 modified_ns, changed_ns; // since 1970; of the bytes, and of anything
};
bool platform_file_identity(int descriptor, struct platform_identity *identity);
// Reads until `bytes` are there or the end; *n_read tells how many came. A signal asked for by
// platform_watch_interrupt ends a read that waits, with SOV_ERR_INTERRUPTED.
enum sov_status platform_read(int descriptor, void *buffer, usize bytes, usize *n_read,
                              struct sov_fault *fault) MUST_CHECK;
// One read: returns as soon as any byte is there; *n_read is 0 at the end of the file only.
enum sov_status platform_read_some(int descriptor, void *buffer, usize bytes, usize *n_read,
                                   struct sov_fault *fault) MUST_CHECK;
// Whether a read would return at once, with bytes or at the end.
bool platform_can_read(int descriptor);
// Reads from `offset` on, until `bytes` are there or the end, and moves no position. Regular files.
enum sov_status platform_read_at(int descriptor, u64 offset, void *buffer, usize bytes,
                                 usize *n_read, struct sov_fault *fault) MUST_CHECK;
// Writes all of it.
enum sov_status platform_write(int descriptor, const void *buffer, usize bytes,
                               struct sov_fault *fault) MUST_CHECK;
// Writes all of it from `offset` on, and moves no position. Not for files opened to append.
enum sov_status platform_write_at(int descriptor, u64 offset, const void *buffer, usize bytes,
                                  struct sov_fault *fault) MUST_CHECK;
// After success the file's bytes and size are on the device. After a failure nobody knows which of
// them are, and asking again proves nothing: the system may have forgotten what it did not write.
enum sov_status platform_sync(int descriptor, struct sov_fault *fault) MUST_CHECK;
// The same for the names in a folder: those of files that were made or renamed.
enum sov_status platform_sync_folder(const char *path, struct sov_fault *fault) MUST_CHECK;
// Gives a file another name on the same file system, at once; what had that name is gone.
enum sov_status platform_rename(const char *from, const char *to, struct sov_fault *fault)
    MUST_CHECK;
// Makes a folder, mode 0700, unless it is there.
enum sov_status platform_make_folder(const char *path, struct sov_fault *fault) MUST_CHECK;
// Takes a file's name away; the file goes when nobody has it open any more.
enum sov_status platform_remove(const char *path, struct sov_fault *fault) MUST_CHECK;
// Removes an empty folder.
enum sov_status platform_remove_folder(const char *path, struct sov_fault *fault) MUST_CHECK;
// Whether nothing has this name. Anything else, a refusal included, is false.
bool platform_is_missing(const char *path);
// Cuts a file to so many bytes.
enum sov_status platform_truncate(int descriptor, u64 bytes, struct sov_fault *fault) MUST_CHECK;
// Takes the file for this process until it is closed; SOV_ERR_STATE while another one has it. Binds
// only those who ask.
enum sov_status platform_lock(int descriptor, struct sov_fault *fault) MUST_CHECK;
bool platform_is_terminal(int descriptor);
// The names in a folder but "." and "..", zero-terminated, one behind the other, in the order of
// the system. Names that do not fit the capacity are SOV_ERR_LIMIT.
enum sov_status platform_folder_names(const char *path, char *names, usize capacity, usize *n_bytes,
                                      struct sov_fault *fault) MUST_CHECK;

// --- the terminal ---
// Settings of a terminal, as the system keeps them.
struct platform_terminal {
    u8 settings[64];
};
// Keys one by one as bytes instead of lines: no echo, no signals from keys, no translation of CR.
// Output stays as it is. False, with nothing changed, when the descriptor is not a terminal; else
// *before is what platform_terminal_restore wants.
bool platform_terminal_raw(int descriptor, struct platform_terminal *before);
void platform_terminal_restore(int descriptor, const struct platform_terminal *before);
u32 platform_terminal_columns(int descriptor); // 0 when the system does not know

// --- memory ---
// Zeroed pages, page-aligned; NULL when the system refuses. Counted by platform_memory_mapped.
void *platform_memory_map(usize bytes) MUST_CHECK;
void platform_memory_unmap(void *memory, usize bytes);
// The same at an address, a multiple of 4096, where nothing is mapped yet; else NULL.
void *platform_memory_map_at(void *address, usize bytes) MUST_CHECK;
// A whole file, read-only and private, page-aligned. `bytes` must be its size and above 0. Reading
// past the end of a file that was cut short afterwards ends the process by SIGBUS.
enum sov_status platform_file_map(int descriptor, u64 bytes, const u8 **data,
                                  struct sov_fault *fault) MUST_CHECK;
void platform_file_unmap(const u8 *data, u64 bytes);
// Bytes mapped by platform_memory_map and not given back.
u64 platform_memory_mapped(void);

// --- libraries ---
// A shared library of the system, for GPU drivers, which can be reached in no other way. It comes
// with a C library that the loader has mapped and initialised for the first thread alone: started
// threads share the first one's thread-local storage (errno among it). Therefore
//
// P5. The functions of this section, and every function of a library, are called by the first
//     thread only, while none of its other calls is in progress.
struct platform_library {
    const char *path; // as it was asked for; lives as long as the caller's
    void *handle;
    void *(*find)(void *handle, const char *name);
};
// Opens a library by its path, or by its name where the system looks for such. It stays until the
// program ends. SOV_ERR_STATE from a program that cannot open any (sov-static), else
// SOV_ERR_UNSUPPORTED with the loader's words. Its constructors run with signals held and leave the
// floating-point control word as it was.
enum sov_status platform_library_open(const struct platform_start *start, const char *path,
                                      struct platform_library *library, struct sov_fault *fault)
    MUST_CHECK;
// The address of a function or variable; SOV_ERR_UNSUPPORTED when the library has none.
enum sov_status platform_library_symbol(const struct platform_library *library, const char *name,
                                        void **address, struct sov_fault *fault) MUST_CHECK;
// Sets the control word of the contract (round to nearest, no flush-to-zero, all exceptions
// masked). To be called after a library's function that may have loaded another library: the
// constructors of some set flush-to-zero.
void platform_float_control(void);
// Blocks signals for the calling thread, until platform_signals_release with what this returned.
// Threads that a library starts meanwhile inherit it, so that the signals of
// platform_watch_interrupt go on reaching the first thread.
u64 platform_signals_hold(void);
void platform_signals_release(u64 before);

// --- clocks and randomness ---
u64 platform_monotonic_ns(void);
u64 platform_wall_ns(void); // since 1970-01-01 UTC
// Waits. A signal asked for by platform_watch_interrupt ends it early, and so it does at once when
// one has come.
void platform_sleep(u64 ns);
// Bytes that nobody can predict (for default seeds; never for anything that is recomputed).
enum sov_status platform_random(void *buffer, usize bytes, struct sov_fault *fault) MUST_CHECK;

// --- threads ---
#define PLATFORM_THREADS_MAX 256
#define PLATFORM_STACK_BYTES (256 * 1024) // of a started thread, with a guard page below it

struct platform_thread; // lives in memory of the platform until joined
typedef void platform_thread_main(void *argument);

u32 platform_cpu_count(void); // CPUs that the calling thread may run on, at least 1
#define PLATFORM_CPUS_MAX 8192
// A set of CPUs: bit i % 64 of word i / 64 is CPU i.
struct platform_cpus {
    u64 words[PLATFORM_CPUS_MAX / 64];
};
// The CPUs that the calling thread may run on, and from now on may. False when the system refuses.
bool platform_cpus_get(struct platform_cpus *cpus);
bool platform_cpus_set(const struct platform_cpus *cpus);
// The new thread starts with the floating-point control word of the contract (round to nearest, no
// flush-to-zero, all exceptions masked), as the first thread does.
enum sov_status platform_thread_start(platform_thread_main *main, void *argument,
                                      struct platform_thread **thread, struct sov_fault *fault)
    MUST_CHECK;
void platform_thread_join(struct platform_thread *thread);
// Sleeps while *word == expected; may wake for no reason. Pairs with platform_wake_all, which is
// called after the word was changed.
void platform_wait(const u32 *word, u32 expected);
void platform_wake_all(const u32 *word);

// --- signals ---
// From now on SIGUSR1 sets the suspend word, and SIGUSR2 clears it.
void platform_watch_power(void);
// Not 0: the power is going, nothing may be computed. To be read atomically, by any thread.
const u32 *platform_suspend_word(void);
// From now on SIGINT and SIGTERM set a flag instead of ending the program; a second one ends it.
void platform_watch_interrupt(void);
bool platform_interrupted(void);
bool platform_terminated(void); // the first of them was SIGTERM
// Forgets a SIGINT (Ctrl-C), so that the next one is a first one again. A SIGTERM stays. Returns
// whether there is nothing to stop for any more.
bool platform_forget_interrupt(void);
