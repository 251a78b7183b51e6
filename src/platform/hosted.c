// SPDX-License-Identifier: Apache-2.0
// The platform by a C library and POSIX threads: the twin of linux.c for tests and sanitizers. The
// only file of src/ that includes C library headers.
//
// Under AddressSanitizer it is stricter than a real system: every mapping ends in poisoned bytes up
// to its page's end, and memory is followed by an inaccessible page, so that reading one byte past
// a mapped file or block is reported.
//
// H1. The numbers, messages and rules of linux.c hold here too; tests/test_platform.c runs on both.
// H2. Signals of platform_watch_interrupt reach the first thread only; started threads block them.
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#include "freestanding/mem.h"
#include "freestanding/text.h"
#include "platform/platform.h"
#include "platform/system_errors.h"

#if defined(__SANITIZE_ADDRESS__)
#define HAVE_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define HAVE_ASAN 1
#endif
#endif
#ifdef HAVE_ASAN
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, bytes) ((void)(address), (void)(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(address, bytes) ((void)(address), (void)(bytes))
#endif

#define PAGE_BYTES 4096
#define THREAD_STACK_BYTES (8 * PLATFORM_STACK_BYTES) // sanitizers make frames larger

// Everything this file remembers. The words are touched atomically.
static struct {
    u64 memory_bytes;
    u32 n_threads;
    u32 watching;    // platform_watch_interrupt was called
    u32 interrupted; // the number of a watched signal that came
    u32 suspended;   // by SIGUSR1, until SIGUSR2
    pthread_mutex_t wait_mutex;
    pthread_cond_t wait_condition;
} hosted = {.wait_mutex = PTHREAD_MUTEX_INITIALIZER, .wait_condition = PTHREAD_COND_INITIALIZER};

// --- errors ---

#define CHECK_NUMBER(name, number, meaning) static_assert((name) == (number), "as on Linux");
SYSTEM_ERROR_LIST(CHECK_NUMBER)
#undef CHECK_NUMBER

// --- start and end ---

// Round to nearest, no flush-to-zero, all exceptions masked: what the contract asks of each thread.
void platform_float_control(void) {
    u32 mxcsr = 0x1f80;
    u16 x87 = 0x37f;
    __asm__ volatile("ldmxcsr %0\n\tfldcw %1" : : "m"(mxcsr), "m"(x87));
}

int main(int argc, char **argv, char **environment) {
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
    platform_float_control();
    struct platform_start start = {
        .n_args = (u32)argc,
        .args = (const char *const *)argv,
        .environment = (const char *const *)environment,
    };
    return program_main(&start);
}

_Noreturn void platform_exit(int code) { exit(code); }

_Noreturn void assert_failed(const char *file, int line, const char *what) {
    fprintf(stderr, "%s:%d: assertion failed: %s\n", file, line, what);
    abort();
}

// --- files ---

enum sov_status platform_open(const char *path, enum platform_open_mode mode, int *descriptor,
                              struct sov_fault *fault) {
    bool create = mode == PLATFORM_OPEN_CREATE || mode == PLATFORM_OPEN_CREATE_PRIVATE;
    bool append = mode == PLATFORM_OPEN_APPEND || mode == PLATFORM_OPEN_APPEND_PRIVATE;
    bool is_private = mode == PLATFORM_OPEN_CREATE_PRIVATE || mode == PLATFORM_OPEN_APPEND_PRIVATE;
    int flags = O_CLOEXEC | (create                         ? O_WRONLY | O_CREAT | O_TRUNC
                             : append                       ? O_RDWR | O_CREAT | O_APPEND
                             : mode == PLATFORM_OPEN_UPDATE ? O_RDWR
                                                            : O_RDONLY);
    int opened;
    do {
        opened = open(path, flags, is_private ? 0600 : 0644);
    } while (opened < 0 && errno == EINTR);
    if (opened < 0) return system_fail(fault, create ? "create" : "open", path, errno);
    *descriptor = opened;
    return SOV_OK;
}

void platform_close(int descriptor) { close(descriptor); }

enum sov_status platform_file_size(int descriptor, u64 *bytes, struct sov_fault *fault) {
    struct stat status;
    if (fstat(descriptor, &status) != 0) {
        return system_fail_descriptor(fault, "size of", descriptor, errno);
    }
    if (!S_ISREG(status.st_mode)) {
        return fault_set(fault, SOV_ERR_IO, "size of descriptor %d: not a regular file",
                         descriptor);
    }
    *bytes = (u64)status.st_size;
    return SOV_OK;
}

enum sov_status platform_take_mode(int descriptor, int from, struct sov_fault *fault) {
    struct stat status;
    if (fstat(from, &status) == 0 && fchmod(descriptor, status.st_mode & 0777) == 0) return SOV_OK;
    return system_fail_descriptor(fault, "mode of", descriptor, errno);
}

bool platform_file_identity(int descriptor, struct platform_identity *identity) {
    struct stat status;
    if (fstat(descriptor, &status) != 0) return false;
    *identity = (struct platform_identity){
        .device = (u64)status.st_dev,
        .inode = (u64)status.st_ino,
        .bytes = (u64)status.st_size,
        .modified_ns = (u64)status.st_mtim.tv_sec * 1000000000u + (u64)status.st_mtim.tv_nsec,
        .changed_ns = (u64)status.st_ctim.tv_sec * 1000000000u + (u64)status.st_ctim.tv_nsec,
    };
    return true;
}

// Waits until a read would not block. The watched signals are blocked from the look at the flag
// until ppoll sleeps, so that none can slip in between and leave the read waiting.
static enum sov_status wait_readable(int descriptor, struct sov_fault *fault) {
    sigset_t watched, before;
    sigemptyset(&watched);
    sigaddset(&watched, SIGINT);
    sigaddset(&watched, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &watched, &before);
    int n_ready = -1;
    do {
        bool interrupted = platform_interrupted();
        struct pollfd poll_on = {.fd = descriptor, .events = POLLIN};
        struct timespec at_once = {0};
        n_ready = ppoll(&poll_on, 1, interrupted ? &at_once : NULL, &before);
    } while (n_ready < 0 && errno == EINTR);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    // A failing ppoll is not reported here: the read that follows says what is wrong.
    if (n_ready != 0) return SOV_OK;
    return fault_set(fault, SOV_ERR_INTERRUPTED, "read: stopped by a signal");
}

enum sov_status platform_read_some(int descriptor, void *buffer, usize bytes, usize *n_read,
                                   struct sov_fault *fault) {
    bool wait = __atomic_load_n(&hosted.watching, __ATOMIC_RELAXED) != 0;
    for (;;) {
        enum sov_status status = wait ? wait_readable(descriptor, fault) : SOV_OK;
        if (status != SOV_OK) return status;
        ssize_t n = read(descriptor, buffer, bytes);
        if (n >= 0) {
            *n_read = (usize)n;
            return SOV_OK;
        }
        wait = wait || errno == EAGAIN; // someone made our input non-blocking
        if (errno != EINTR && errno != EAGAIN) {
            return system_fail_descriptor(fault, "read", descriptor, errno);
        }
    }
}

enum sov_status platform_read(int descriptor, void *buffer, usize bytes, usize *n_read,
                              struct sov_fault *fault) {
    usize sum = 0;
    enum sov_status status = SOV_OK;
    while (sum < bytes) {
        usize n = 0;
        status = platform_read_some(descriptor, (u8 *)buffer + sum, bytes - sum, &n, fault);
        if (status != SOV_OK || n == 0) break;
        sum += n;
    }
    *n_read = sum;
    return status;
}

bool platform_can_read(int descriptor) {
    struct pollfd poll_on = {.fd = descriptor, .events = POLLIN};
    return poll(&poll_on, 1, 0) != 0; // of an error the read will tell
}

enum sov_status platform_read_at(int descriptor, u64 offset, void *buffer, usize bytes,
                                 usize *n_read, struct sov_fault *fault) {
    usize sum = 0;
    while (sum < bytes) {
        ssize_t n = pread(descriptor, (u8 *)buffer + sum, bytes - sum, (off_t)(offset + sum));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return system_fail_descriptor(fault, "read", descriptor, errno);
        if (n == 0) break;
        sum += (usize)n;
    }
    *n_read = sum;
    return SOV_OK;
}

enum sov_status platform_write_at(int descriptor, u64 offset, const void *buffer, usize bytes,
                                  struct sov_fault *fault) {
    for (usize sum = 0; sum < bytes;) {
        ssize_t n =
            pwrite(descriptor, (const u8 *)buffer + sum, bytes - sum, (off_t)(offset + sum));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return system_fail_descriptor(fault, "write", descriptor, errno);
        sum += (usize)n;
    }
    return SOV_OK;
}

// Not repeated after a failure, EINTR included: it could succeed without the bytes.
enum sov_status platform_sync(int descriptor, struct sov_fault *fault) {
    return fsync(descriptor) == 0 ? SOV_OK
                                  : system_fail_descriptor(fault, "sync", descriptor, errno);
}

enum sov_status platform_sync_folder(const char *path, struct sov_fault *fault) {
    int opened = open(path, O_RDONLY | O_CLOEXEC | O_DIRECTORY);
    if (opened < 0) return system_fail(fault, "open", path, errno);
    int error = fsync(opened) == 0 ? 0 : errno;
    close(opened);
    return error != 0 ? system_fail(fault, "sync", path, error) : SOV_OK;
}

enum sov_status platform_rename(const char *from, const char *to, struct sov_fault *fault) {
    return rename(from, to) == 0 ? SOV_OK : system_fail(fault, "rename", from, errno);
}

enum sov_status platform_make_folder(const char *path, struct sov_fault *fault) {
    if (mkdir(path, 0700) == 0 || errno == EEXIST) return SOV_OK;
    return system_fail(fault, "make folder", path, errno);
}

enum sov_status platform_remove(const char *path, struct sov_fault *fault) {
    return unlink(path) == 0 ? SOV_OK : system_fail(fault, "remove", path, errno);
}

enum sov_status platform_remove_folder(const char *path, struct sov_fault *fault) {
    return rmdir(path) == 0 ? SOV_OK : system_fail(fault, "remove folder", path, errno);
}

bool platform_is_missing(const char *path) {
    int opened = open(path, O_RDONLY | O_CLOEXEC);
    if (opened < 0) return errno == ENOENT;
    close(opened);
    return false;
}

enum sov_status platform_truncate(int descriptor, u64 bytes, struct sov_fault *fault) {
    int result;
    do {
        result = ftruncate(descriptor, (off_t)bytes);
    } while (result != 0 && errno == EINTR);
    if (result != 0) return system_fail_descriptor(fault, "cut", descriptor, errno);
    return SOV_OK;
}

enum sov_status platform_lock(int descriptor, struct sov_fault *fault) {
    int result;
    do {
        result = flock(descriptor, LOCK_EX | LOCK_NB);
    } while (result != 0 && errno == EINTR);
    if (result != 0 && errno == EAGAIN) {
        return fault_set(fault, SOV_ERR_STATE, "another process writes to this file");
    }
    if (result != 0) return system_fail_descriptor(fault, "lock", descriptor, errno);
    return SOV_OK;
}

enum sov_status platform_write(int descriptor, const void *buffer, usize bytes,
                               struct sov_fault *fault) {
    for (usize sum = 0; sum < bytes;) {
        ssize_t n = write(descriptor, (const u8 *)buffer + sum, bytes - sum);
        if (n >= 0) {
            sum += (usize)n;
        } else if (errno == EAGAIN) { // someone made our output non-blocking: wait for room
            struct pollfd poll_on = {.fd = descriptor, .events = POLLOUT};
            poll(&poll_on, 1, -1);
        } else if (errno != EINTR) {
            return system_fail_descriptor(fault, "write", descriptor, errno);
        }
    }
    return SOV_OK;
}

enum sov_status platform_folder_names(const char *path, char *names, usize capacity, usize *n_bytes,
                                      struct sov_fault *fault) {
    DIR *folder = opendir(path);
    if (folder == NULL) return system_fail(fault, "open", path, errno);
    struct text out = text_over(names, capacity);
    const struct dirent *entry;
    while ((entry = readdir(folder)) != NULL) {
        struct str name = str_from_z(entry->d_name);
        if (str_equal(name, STR(".")) || str_equal(name, STR(".."))) continue;
        text_put(&out, name);
        text_put_byte(&out, 0);
    }
    closedir(folder);
    if (out.truncated) return fault_set(fault, SOV_ERR_LIMIT, "list %s: too many names", path);
    *n_bytes = out.len;
    return SOV_OK;
}

bool platform_is_terminal(int descriptor) { return isatty(descriptor) == 1; }

// --- the terminal ---

static_assert(sizeof(struct termios) <= sizeof(struct platform_terminal), "there is room");

bool platform_terminal_raw(int descriptor, struct platform_terminal *before) {
    struct termios settings;
    if (tcgetattr(descriptor, &settings) != 0) return false;
    memcpy(before->settings, &settings, sizeof settings);
    settings.c_iflag &= ~(tcflag_t)(BRKINT | ISTRIP | INLCR | IGNCR | ICRNL | IXON);
    settings.c_lflag &= ~(tcflag_t)(ISIG | ICANON | ECHO | IEXTEN);
    settings.c_cc[VMIN] = 1;
    settings.c_cc[VTIME] = 0;
    return tcsetattr(descriptor, TCSADRAIN, &settings) == 0;
}

void platform_terminal_restore(int descriptor, const struct platform_terminal *before) {
    struct termios settings;
    memcpy(&settings, before->settings, sizeof settings);
    while (tcsetattr(descriptor, TCSADRAIN, &settings) != 0 && errno == EINTR) {
    }
}

u32 platform_terminal_columns(int descriptor) {
    struct winsize size = {0};
    return ioctl(descriptor, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

// --- memory ---

// Bytes of the whole pages that hold `bytes`, or 0 when that does not fit a size.
static usize whole_pages(usize bytes) {
    return bytes > (usize)-1 - 2 * PAGE_BYTES ? 0 : (usize)round_up(bytes, PAGE_BYTES);
}

// Address space for `mapped` bytes and an inaccessible page after them; NULL when refused.
static u8 *reserve_guarded(usize mapped) {
    if (mapped == 0) return NULL;
    u8 *memory = mmap(NULL, mapped + PAGE_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

static void release_guarded(void *memory, usize mapped) {
    ASAN_UNPOISON_MEMORY_REGION(memory, mapped);
    int result = munmap(memory, mapped + PAGE_BYTES);
    assert(result == 0);
}

void *platform_memory_map(usize bytes) {
    usize mapped = whole_pages(bytes);
    u8 *memory = reserve_guarded(mapped);
    if (memory == NULL) return NULL;
    if (mprotect(memory, mapped, PROT_READ | PROT_WRITE) != 0) {
        release_guarded(memory, mapped);
        return NULL;
    }
    ASAN_POISON_MEMORY_REGION(memory + bytes, mapped - bytes);
    __atomic_fetch_add(&hosted.memory_bytes, bytes, __ATOMIC_RELAXED);
    return memory;
}

void *platform_memory_map_at(void *address, usize bytes) {
    usize mapped = whole_pages(bytes);
    u8 *memory = mmap(address, mapped + PAGE_BYTES, PROT_NONE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (memory == MAP_FAILED) return NULL;
    if (memory != address || mprotect(memory, mapped, PROT_READ | PROT_WRITE) != 0) {
        release_guarded(memory, mapped);
        return NULL;
    }
    ASAN_POISON_MEMORY_REGION(memory + bytes, mapped - bytes);
    __atomic_fetch_add(&hosted.memory_bytes, bytes, __ATOMIC_RELAXED);
    return memory;
}

void platform_memory_unmap(void *memory, usize bytes) {
    if (memory == NULL) return;
    release_guarded(memory, whole_pages(bytes));
    __atomic_fetch_sub(&hosted.memory_bytes, bytes, __ATOMIC_RELAXED);
}

u64 platform_memory_mapped(void) { return __atomic_load_n(&hosted.memory_bytes, __ATOMIC_RELAXED); }

enum sov_status platform_file_map(int descriptor, u64 bytes, const u8 **data,
                                  struct sov_fault *fault) {
    assert(bytes > 0);
    usize mapped = whole_pages(bytes);
    u8 *reserved = reserve_guarded(mapped);
    if (reserved == NULL) return system_fail_descriptor(fault, "map", descriptor, ENOMEM);
    if (mmap(reserved, bytes, PROT_READ, MAP_PRIVATE | MAP_FIXED, descriptor, 0) == MAP_FAILED) {
        int error = errno;
        release_guarded(reserved, mapped);
        return system_fail_descriptor(fault, "map", descriptor, error);
    }
    ASAN_POISON_MEMORY_REGION(reserved + bytes, mapped - bytes);
    *data = reserved;
    return SOV_OK;
}

void platform_file_unmap(const u8 *data, u64 bytes) {
    // NOLINTNEXTLINE(performance-no-int-to-ptr): takes the const off, which munmap does not have
    release_guarded((void *)(usize)data, whole_pages(bytes));
}

// --- libraries ---

enum sov_status platform_library_open(const struct platform_start *start, const char *path,
                                      struct platform_library *library, struct sov_fault *fault) {
    (void)start; // the C library was initialised in the usual way
    u64 before = platform_signals_hold();
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    platform_signals_release(before);
    platform_float_control();
    if (handle == NULL) {
        return fault_set(fault, SOV_ERR_UNSUPPORTED, "library %s: %s", path, dlerror());
    }
    *library = (struct platform_library){.path = path, .handle = handle, .find = dlsym};
    return SOV_OK;
}

// --- clocks and randomness ---

static u64 read_clock(clockid_t clock) {
    struct timespec now = {0};
    int result = clock_gettime(clock, &now);
    assert(result == 0);
    return (u64)now.tv_sec * 1000000000 + (u64)now.tv_nsec;
}

u64 platform_monotonic_ns(void) { return read_clock(CLOCK_MONOTONIC); }
u64 platform_wall_ns(void) { return read_clock(CLOCK_REALTIME); }

void platform_sleep(u64 ns) {
    sigset_t watched, before;
    sigemptyset(&watched);
    sigaddset(&watched, SIGINT);
    sigaddset(&watched, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &watched, &before); // none between the look and the sleep
    u64 end = platform_monotonic_ns() + ns;
    while (!platform_interrupted()) {
        u64 now = platform_monotonic_ns();
        if (now >= end) break;
        struct timespec left = {(time_t)((end - now) / 1000000000u),
                                (long)((end - now) % 1000000000u)};
        if (ppoll(NULL, 0, &left, &before) == 0) break;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

enum sov_status platform_random(void *buffer, usize bytes, struct sov_fault *fault) {
    for (usize sum = 0; sum < bytes;) {
        ssize_t n = getrandom((u8 *)buffer + sum, bytes - sum, 0);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return system_fail(fault, "read", "random bytes", errno);
        sum += (usize)n;
    }
    return SOV_OK;
}

// --- threads ---

struct platform_thread {
    pthread_t handle;
    platform_thread_main *main;
    void *argument;
};

bool platform_cpus_get(struct platform_cpus *cpus) {
    cpu_set_t set;
    memset(cpus, 0, sizeof *cpus);
    if (sched_getaffinity(0, sizeof set, &set) != 0) return false;
    for (u32 i = 0; i < MIN((u32)CPU_SETSIZE, (u32)PLATFORM_CPUS_MAX); i++) {
        if (CPU_ISSET(i, &set)) cpus->words[i / 64] |= 1ull << (i % 64);
    }
    return true;
}

bool platform_cpus_set(const struct platform_cpus *cpus) {
    cpu_set_t set;
    CPU_ZERO(&set);
    for (u32 i = 0; i < MIN((u32)CPU_SETSIZE, (u32)PLATFORM_CPUS_MAX); i++) {
        if ((cpus->words[i / 64] >> (i % 64) & 1) != 0) CPU_SET(i, &set);
    }
    return sched_setaffinity(0, sizeof set, &set) == 0;
}

u32 platform_cpu_count(void) {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
    return (u32)MAX(CPU_COUNT(&set), 1);
}

static void *thread_entry(void *argument) {
    struct platform_thread *thread = argument;
    platform_float_control();
    thread->main(thread->argument);
    return NULL;
}

// pthread_create with the stack size of this file and all but the abort signal blocked.
static int create_thread(struct platform_thread *thread) {
    pthread_attr_t attributes;
    int error = pthread_attr_init(&attributes);
    if (error != 0) return error;
    error = pthread_attr_setstacksize(&attributes, THREAD_STACK_BYTES);
    u64 before = platform_signals_hold();
    if (error == 0) error = pthread_create(&thread->handle, &attributes, thread_entry, thread);
    platform_signals_release(before);
    pthread_attr_destroy(&attributes);
    return error;
}

enum sov_status platform_thread_start(platform_thread_main *main_function, void *argument,
                                      struct platform_thread **thread, struct sov_fault *fault) {
    if (__atomic_add_fetch(&hosted.n_threads, 1, __ATOMIC_RELAXED) > PLATFORM_THREADS_MAX) {
        __atomic_sub_fetch(&hosted.n_threads, 1, __ATOMIC_RELAXED);
        return fault_set(fault, SOV_ERR_LIMIT, "start a thread: %d are running, the limit",
                         PLATFORM_THREADS_MAX);
    }
    struct platform_thread *started = calloc(1, sizeof *started);
    int error = ENOMEM;
    if (started != NULL) {
        started->main = main_function;
        started->argument = argument;
        error = create_thread(started);
    }
    if (error != 0) {
        free(started);
        __atomic_sub_fetch(&hosted.n_threads, 1, __ATOMIC_RELAXED);
        return system_fail(fault, "start", "a thread", error);
    }
    *thread = started;
    return SOV_OK;
}

void platform_thread_join(struct platform_thread *thread) {
    int error = pthread_join(thread->handle, NULL);
    assert(error == 0);
    free(thread);
    __atomic_sub_fetch(&hosted.n_threads, 1, __ATOMIC_RELAXED);
}

// One condition for all words: a wake-up wakes every sleeper, which the interface allows. The word
// was changed before the waker takes the mutex, so a sleeper either sees the change or is already
// in pthread_cond_wait.
void platform_wait(const u32 *word, u32 expected) {
    pthread_mutex_lock(&hosted.wait_mutex);
    if (__atomic_load_n(word, __ATOMIC_ACQUIRE) == expected) {
        pthread_cond_wait(&hosted.wait_condition, &hosted.wait_mutex);
    }
    pthread_mutex_unlock(&hosted.wait_mutex);
}

void platform_wake_all(const u32 *word) {
    (void)word;
    pthread_mutex_lock(&hosted.wait_mutex);
    pthread_cond_broadcast(&hosted.wait_condition);
    pthread_mutex_unlock(&hosted.wait_mutex);
}

// --- signals ---

static void on_power(int number) {
    __atomic_store_n(&hosted.suspended, number == SIGUSR1 ? 1 : 0, __ATOMIC_RELAXED);
}

void platform_watch_power(void) {
    struct sigaction action = {.sa_handler = on_power};
    sigemptyset(&action.sa_mask);
    sigaction(SIGUSR1, &action, NULL);
    sigaction(SIGUSR2, &action, NULL);
}

// The kernel's 64 signals are the first 8 bytes of a sigset_t.
u64 platform_signals_hold(void) {
    sigset_t all, set;
    sigfillset(&all);
    sigdelset(&all, SIGABRT);
    pthread_sigmask(SIG_SETMASK, &all, &set);
    return load_u64(&set);
}

void platform_signals_release(u64 before) {
    sigset_t set;
    sigemptyset(&set);
    store_u64(&set, before);
    pthread_sigmask(SIG_SETMASK, &set, NULL);
}

const u32 *platform_suspend_word(void) { return &hosted.suspended; }

// The first signal is noted. A second one takes its default course as soon as this returns.
static void on_interrupt(int number) {
    if (__atomic_exchange_n(&hosted.interrupted, (u32)number, __ATOMIC_RELAXED) == 0) return;
    signal(number, SIG_DFL);
    raise(number);
}

void platform_watch_interrupt(void) {
    struct sigaction action = {.sa_handler = on_interrupt}; // no SA_RESTART: a waiting read ends
    sigemptyset(&action.sa_mask);
    __atomic_store_n(&hosted.watching, 1, __ATOMIC_RELAXED);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

bool platform_interrupted(void) {
    return __atomic_load_n(&hosted.interrupted, __ATOMIC_RELAXED) != 0;
}

bool platform_terminated(void) {
    return __atomic_load_n(&hosted.interrupted, __ATOMIC_RELAXED) == SIGTERM;
}

bool platform_forget_interrupt(void) {
    u32 expected = SIGINT;
    __atomic_compare_exchange_n(&hosted.interrupted, &expected, 0, false, __ATOMIC_RELAXED,
                                __ATOMIC_RELAXED);
    return !platform_interrupted();
}
