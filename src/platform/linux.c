// SPDX-License-Identifier: Apache-2.0
// The platform by raw system calls, Linux on x86-64. From top to bottom: typed wrappers that still
// speak the kernel's language (results in [-4095, -1] are errors), then the functions of platform.h
// that speak this project's.
//
// The program may have been started by the kernel (sov-static) or by the dynamic loader with libc
// mapped beside it (sov). Both look the same from here because of these rules:
//
// L1. No C library function is called (but from linux_library.c, see there) and thread-local
// storage
//     (fs) is never touched; started threads inherit the fs of their parent and must not run code
//     that uses it.
// L2. No brk. All memory is mapped, and every mapping is in this file.
// L3. Signals of platform_watch_interrupt reach the first thread only; started threads block all
//     signals but SIGABRT.
// L4. Nothing here waits without a bound except read, write, ppoll and futex.
//
// A started thread is one mapping:
//
//     base                  guard page, no access: running off the stack stops the program
//     base + PAGE_BYTES     stack, PLATFORM_STACK_BYTES, growing down from
//     ...                   struct platform_thread, at the end
#include "freestanding/mem.h"
#include "freestanding/text.h"
#include "platform/linux_start.h"
#include "platform/linux_syscall.h"
#include "platform/platform.h"
#include "platform/system_errors.h"

#define ERROR_NUMBER(error, number, text) error = (number),
enum { SYSTEM_ERROR_LIST(ERROR_NUMBER) };
#undef ERROR_NUMBER

#define PAGE_BYTES 4096u

// Everything this file remembers. The words are touched atomically.
static struct {
    u64 memory_bytes;
    u32 n_threads;
    u32 watching;    // platform_watch_interrupt was called
    u32 interrupted; // the number of a watched signal that came
    u32 suspended;   // by SIGUSR1, until SIGUSR2
} linux_state;

// --- typed system calls ---

#define O_RDONLY 0
#define O_WRONLY 01
#define O_RDWR 02
#define O_CREAT 0100
#define O_TRUNC 01000
#define O_APPEND 02000
#define O_CLOEXEC 02000000
#define O_DIRECTORY 0200000
#define MODE_FILE 0644
#define MODE_PRIVATE_FILE 0600
#define MODE_FOLDER 0700

static i64 call_open(const char *path, u32 flags, u32 mode) {
    return linux_syscall(LINUX_OPEN, (u64)path, flags, mode, 0, 0, 0);
}

static i64 call_close(int descriptor) {
    return linux_syscall(LINUX_CLOSE, (u64)(i64)descriptor, 0, 0, 0, 0, 0);
}

static i64 call_read(int descriptor, void *buffer, usize bytes) {
    return linux_syscall(LINUX_READ, (u64)(i64)descriptor, (u64)buffer, bytes, 0, 0, 0);
}

static i64 call_pread64(int descriptor, void *buffer, usize bytes, u64 offset) {
    return linux_syscall(LINUX_PREAD64, (u64)(i64)descriptor, (u64)buffer, bytes, offset, 0, 0);
}

static i64 call_pwrite64(int descriptor, const void *buffer, usize bytes, u64 offset) {
    return linux_syscall(LINUX_PWRITE64, (u64)(i64)descriptor, (u64)buffer, bytes, offset, 0, 0);
}

static i64 call_fsync(int descriptor) {
    return linux_syscall(LINUX_FSYNC, (u64)(i64)descriptor, 0, 0, 0, 0, 0);
}

static i64 call_fchmod(int descriptor, u32 mode) {
    return linux_syscall(LINUX_FCHMOD, (u64)(i64)descriptor, mode, 0, 0, 0, 0);
}

static i64 call_rename(const char *from, const char *to) {
    return linux_syscall(LINUX_RENAME, (u64)from, (u64)to, 0, 0, 0, 0);
}

static i64 call_mkdir(const char *path, u32 mode) {
    return linux_syscall(LINUX_MKDIR, (u64)path, mode, 0, 0, 0, 0);
}

static i64 call_unlink(const char *path) {
    return linux_syscall(LINUX_UNLINK, (u64)path, 0, 0, 0, 0, 0);
}

static i64 call_rmdir(const char *path) {
    return linux_syscall(LINUX_RMDIR, (u64)path, 0, 0, 0, 0, 0);
}

static i64 call_ftruncate(int descriptor, u64 bytes) {
    return linux_syscall(LINUX_FTRUNCATE, (u64)(i64)descriptor, bytes, 0, 0, 0, 0);
}

#define LOCK_EX 2
#define LOCK_NB 4

static i64 call_flock(int descriptor, u32 operation) {
    return linux_syscall(LINUX_FLOCK, (u64)(i64)descriptor, operation, 0, 0, 0, 0);
}

static i64 call_write(int descriptor, const void *buffer, usize bytes) {
    return linux_syscall(LINUX_WRITE, (u64)(i64)descriptor, (u64)buffer, bytes, 0, 0, 0);
}

struct linux_timespec {
    i64 seconds, nanoseconds;
};

// struct stat of x86-64; only what is used has a name.
struct linux_stat {
    u64 device, inode, ignored_1;
    u32 mode;
    u32 ignored_2[5];
    i64 size;
    u64 ignored_3[4];
    struct linux_timespec modified, changed;
    u64 ignored_4[3];
};
static_assert(sizeof(struct linux_stat) == 144 && offsetof(struct linux_stat, mode) == 24 &&
                  offsetof(struct linux_stat, size) == 48 &&
                  offsetof(struct linux_stat, modified) == 88,
              "the kernel's layout");
#define MODE_TYPE_MASK 0170000u
#define MODE_TYPE_REGULAR 0100000u
#define MODE_RIGHTS_MASK 0777u

static i64 call_fstat(int descriptor, struct linux_stat *result) {
    return linux_syscall(LINUX_FSTAT, (u64)(i64)descriptor, (u64)result, 0, 0, 0, 0);
}

#define IOCTL_TCGETS 0x5401
#define IOCTL_TCSETSW 0x5403 // when what was written has gone out
#define IOCTL_TIOCGWINSZ 0x5413

// The kernel's struct termios.
struct linux_termios {
    u32 input, output, control, local;
    u8 line, characters[19];
};
static_assert(sizeof(struct linux_termios) == 36, "the kernel's layout");
#define TERMIOS_BRKINT 0000002u // of input
#define TERMIOS_ISTRIP 0000040u
#define TERMIOS_INLCR 0000100u
#define TERMIOS_IGNCR 0000200u
#define TERMIOS_ICRNL 0000400u
#define TERMIOS_IXON 0002000u
#define TERMIOS_ISIG 0000001u // of local
#define TERMIOS_ICANON 0000002u
#define TERMIOS_ECHO 0000010u
#define TERMIOS_IEXTEN 0100000u
#define TERMIOS_VTIME 5 // of characters
#define TERMIOS_VMIN 6

struct linux_winsize {
    u16 rows, columns, ignored[2];
};

static i64 call_ioctl(int descriptor, u64 request, void *argument) {
    return linux_syscall(LINUX_IOCTL, (u64)(i64)descriptor, request, (u64)argument, 0, 0, 0);
}

#define PROT_NONE 0
#define PROT_READ 1
#define PROT_WRITE 2
#define MAP_PRIVATE 0x02
#define MAP_FIXED 0x10
#define MAP_FIXED_NOREPLACE 0x100000
#define MAP_ANONYMOUS 0x20
#define MAP_NORESERVE 0x4000
#define MAP_STACK 0x20000
#define MADV_HUGEPAGE 14
#define HUGE_PAGE_BYTES (2u << 20)

static i64 call_mmap_at(i64 address, usize bytes, u32 protection, u32 flags, int descriptor) {
    return linux_syscall(LINUX_MMAP, (u64)address, bytes, protection, flags, (u64)(i64)descriptor,
                         0);
}

static i64 call_mmap(usize bytes, u32 protection, u32 flags, int descriptor) {
    return call_mmap_at(0, bytes, protection, flags, descriptor);
}

static i64 call_mprotect(void *memory, usize bytes, u32 protection) {
    return linux_syscall(LINUX_MPROTECT, (u64)memory, bytes, protection, 0, 0, 0);
}

static i64 call_munmap(const void *memory, usize bytes) {
    return linux_syscall(LINUX_MUNMAP, (u64)memory, bytes, 0, 0, 0, 0);
}

#define CLOCK_REALTIME 0
#define CLOCK_MONOTONIC 1

static i64 call_clock_gettime(u32 clock, struct linux_timespec *result) {
    return linux_syscall(LINUX_CLOCK_GETTIME, clock, (u64)result, 0, 0, 0, 0);
}

struct linux_pollfd {
    int descriptor;
    u16 events, returned_events;
};
#define POLLIN 0x1
#define POLLOUT 0x4

// Sleeps with the signals of *mask blocked instead of the thread's own, if mask is not NULL. The
// kernel writes the time left into *timeout.
static i64 call_ppoll(struct linux_pollfd *poll_on, struct linux_timespec *timeout,
                      const u64 *mask) {
    return linux_syscall(LINUX_PPOLL, (u64)poll_on, 1, (u64)timeout, (u64)mask, sizeof *mask, 0);
}

#define FUTEX_WAIT 0
#define FUTEX_WAIT_PRIVATE 128
#define FUTEX_WAKE_PRIVATE 129

static i64 call_futex(const u32 *word, u32 operation, u32 value) {
    return linux_syscall(LINUX_FUTEX, (u64)word, operation, value, 0, 0, 0);
}

// The kernel's sigaction; it has no restorer of its own on x86-64.
struct linux_sigaction {
    void (*handler)(int number);
    u64 flags;
    void (*restorer)(void);
    u64 mask;
};
#define SIGNAL_MASK_BYTES 8
#define SIGNAL_BIT(number) (1ull << ((number)-1))
#define SIGINT 2
#define SIGABRT 6
#define SIGUSR1 10
#define SIGUSR2 12
#define SIGPIPE 13
#define SIGTERM 15
#define SIGXFSZ 25
#define SIG_DFL NULL
#define SIG_IGN ((void (*)(int))1)
#define SIG_BLOCK 0
#define SIG_SETMASK 2
#define SA_RESTORER 0x04000000

static i64 call_rt_sigaction(int number, const struct linux_sigaction *action) {
    return linux_syscall(LINUX_RT_SIGACTION, (u64)number, (u64)action, 0, SIGNAL_MASK_BYTES, 0, 0);
}

static i64 call_rt_sigprocmask(u32 how, const u64 *set, u64 *before) {
    return linux_syscall(LINUX_RT_SIGPROCMASK, how, (u64)set, (u64)before, SIGNAL_MASK_BYTES, 0, 0);
}

// Sends a signal to the calling thread.
static void raise_signal(int number) {
    i64 process = linux_syscall(LINUX_GETPID, 0, 0, 0, 0, 0, 0);
    i64 thread = linux_syscall(LINUX_GETTID, 0, 0, 0, 0, 0, 0);
    linux_syscall(LINUX_TGKILL, (u64)process, (u64)thread, (u64)number, 0, 0, 0);
}

// --- start and end ---

// Round to nearest, no flush-to-zero, all exceptions masked: what the contract asks of each thread.
void platform_float_control(void) {
    const u32 mxcsr = 0x1f80;
    const u16 x87 = 0x37f;
    __asm__ volatile("ldmxcsr %0\n\tfldcw %1" : : "m"(mxcsr), "m"(x87));
}

_Noreturn void linux_main(const u64 *stack) {
    platform_float_control();
    // A reader that goes away (EPIPE) and a file as long as may be (EFBIG) are errors of the write,
    // not the end of the program.
    const struct linux_sigaction ignored = {.handler = SIG_IGN};
    call_rt_sigaction(SIGPIPE, &ignored);
    call_rt_sigaction(SIGXFSZ, &ignored);
    u32 n_args = (u32)stack[0];
    struct platform_start start = {
        .n_args = n_args,
        .args = (const char *const *)(stack + 1),
        .environment = (const char *const *)(stack + 1 + n_args + 1),
    };
    const char *const *end = start.environment;
    while (*end != NULL) end++;
    // A preloaded library that took variables out of the environment has moved the others down:
    // several zeros end it then. What follows, the auxiliary vector, does not begin with zero.
    while (*end == NULL) end++;
    start.system = end; // for linux_library.c
    platform_exit(program_main(&start));
}

_Noreturn void platform_exit(int code) {
    for (;;) linux_syscall(LINUX_EXIT_GROUP, (u64)(u32)code, 0, 0, 0, 0, 0);
}

_Noreturn void assert_failed(const char *file, int line, const char *what) {
    char memory[512];
    struct text t = TEXT_OVER_ARRAY(memory);
    text_format(&t, "%s:%d: assertion failed: %s", file, line, what);
    t.len = MIN(t.len, t.capacity - 2);
    t.data[t.len++] = '\n';
    call_write(PLATFORM_STDERR, t.data, t.len);
    const struct linux_sigaction by_default = {.handler = SIG_DFL};
    call_rt_sigaction(SIGABRT, &by_default);
    raise_signal(SIGABRT);
    platform_exit(128 + SIGABRT); // not reached unless SIGABRT is blocked
}

// --- files ---

enum sov_status platform_open(const char *path, enum platform_open_mode mode, int *descriptor,
                              struct sov_fault *fault) {
    bool create = mode == PLATFORM_OPEN_CREATE || mode == PLATFORM_OPEN_CREATE_PRIVATE;
    bool append = mode == PLATFORM_OPEN_APPEND || mode == PLATFORM_OPEN_APPEND_PRIVATE;
    bool is_private = mode == PLATFORM_OPEN_CREATE_PRIVATE || mode == PLATFORM_OPEN_APPEND_PRIVATE;
    u32 flags = O_CLOEXEC | (create                         ? O_WRONLY | O_CREAT | O_TRUNC
                             : append                       ? O_RDWR | O_CREAT | O_APPEND
                             : mode == PLATFORM_OPEN_UPDATE ? O_RDWR
                                                            : O_RDONLY);
    i64 opened;
    do {
        opened = call_open(path, flags, is_private ? MODE_PRIVATE_FILE : MODE_FILE);
    } while (opened == -EINTR);
    if (opened < 0) return system_fail(fault, create ? "create" : "open", path, -opened);
    *descriptor = (int)opened;
    return SOV_OK;
}

// Not repeated after EINTR: Linux has released the descriptor by then.
void platform_close(int descriptor) { call_close(descriptor); }

enum sov_status platform_file_size(int descriptor, u64 *bytes, struct sov_fault *fault) {
    struct linux_stat status = {0};
    i64 result = call_fstat(descriptor, &status);
    if (result < 0) return system_fail_descriptor(fault, "size of", descriptor, -result);
    if ((status.mode & MODE_TYPE_MASK) != MODE_TYPE_REGULAR) {
        return fault_set(fault, SOV_ERR_IO, "size of descriptor %d: not a regular file",
                         descriptor);
    }
    *bytes = (u64)status.size;
    return SOV_OK;
}

enum sov_status platform_take_mode(int descriptor, int from, struct sov_fault *fault) {
    struct linux_stat status = {0};
    i64 result = call_fstat(from, &status);
    if (result >= 0) result = call_fchmod(descriptor, status.mode & MODE_RIGHTS_MASK);
    return result < 0 ? system_fail_descriptor(fault, "mode of", descriptor, -result) : SOV_OK;
}

bool platform_file_identity(int descriptor, struct platform_identity *identity) {
    struct linux_stat status = {0};
    if (call_fstat(descriptor, &status) < 0) return false;
    *identity = (struct platform_identity){
        .device = status.device,
        .inode = status.inode,
        .bytes = (u64)status.size,
        .modified_ns = (u64)status.modified.seconds * 1000000000u +
                       (u64)status.modified.nanoseconds,
        .changed_ns = (u64)status.changed.seconds * 1000000000u + (u64)status.changed.nanoseconds,
    };
    return true;
}

// Waits until a read would not block. The watched signals are blocked from the look at the flag
// until ppoll sleeps, so that none can slip in between and leave the read waiting.
static enum sov_status wait_readable(int descriptor, struct sov_fault *fault) {
    const u64 watched = SIGNAL_BIT(SIGINT) | SIGNAL_BIT(SIGTERM);
    u64 before = 0;
    call_rt_sigprocmask(SIG_BLOCK, &watched, &before);
    i64 n_ready;
    do {
        bool interrupted = platform_interrupted();
        struct linux_pollfd poll_on = {.descriptor = descriptor, .events = POLLIN};
        struct linux_timespec at_once = {0};
        n_ready = call_ppoll(&poll_on, interrupted ? &at_once : NULL, &before);
    } while (n_ready == -EINTR);
    call_rt_sigprocmask(SIG_SETMASK, &before, NULL);
    // A failing ppoll is not reported here: the read that follows says what is wrong.
    if (n_ready != 0) return SOV_OK;
    return fault_set(fault, SOV_ERR_INTERRUPTED, "read: stopped by a signal");
}

enum sov_status platform_read_some(int descriptor, void *buffer, usize bytes, usize *n_read,
                                   struct sov_fault *fault) {
    bool wait = __atomic_load_n(&linux_state.watching, __ATOMIC_RELAXED) != 0;
    for (;;) {
        enum sov_status status = wait ? wait_readable(descriptor, fault) : SOV_OK;
        if (status != SOV_OK) return status;
        i64 n = call_read(descriptor, buffer, bytes);
        if (n >= 0) {
            *n_read = (usize)n;
            return SOV_OK;
        }
        wait = wait || n == -EAGAIN; // someone made our input non-blocking
        if (n != -EINTR && n != -EAGAIN) {
            return system_fail_descriptor(fault, "read", descriptor, -n);
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
    struct linux_pollfd poll_on = {.descriptor = descriptor, .events = POLLIN};
    struct linux_timespec at_once = {0};
    return call_ppoll(&poll_on, &at_once, NULL) != 0; // of an error the read will tell
}

enum sov_status platform_read_at(int descriptor, u64 offset, void *buffer, usize bytes,
                                 usize *n_read, struct sov_fault *fault) {
    usize sum = 0;
    while (sum < bytes) {
        i64 n = call_pread64(descriptor, (u8 *)buffer + sum, bytes - sum, offset + sum);
        if (n == -EINTR) continue;
        if (n < 0) return system_fail_descriptor(fault, "read", descriptor, -n);
        if (n == 0) break;
        sum += (usize)n;
    }
    *n_read = sum;
    return SOV_OK;
}

enum sov_status platform_write_at(int descriptor, u64 offset, const void *buffer, usize bytes,
                                  struct sov_fault *fault) {
    for (usize sum = 0; sum < bytes;) {
        i64 n = call_pwrite64(descriptor, (const u8 *)buffer + sum, bytes - sum, offset + sum);
        if (n == -EINTR) continue;
        if (n < 0) return system_fail_descriptor(fault, "write", descriptor, -n);
        sum += (usize)n;
    }
    return SOV_OK;
}

// Not repeated after a failure, EINTR included: it could succeed without the bytes.
enum sov_status platform_sync(int descriptor, struct sov_fault *fault) {
    i64 result = call_fsync(descriptor);
    return result < 0 ? system_fail_descriptor(fault, "sync", descriptor, -result) : SOV_OK;
}

enum sov_status platform_sync_folder(const char *path, struct sov_fault *fault) {
    i64 opened = call_open(path, O_RDONLY | O_CLOEXEC | O_DIRECTORY, 0);
    if (opened < 0) return system_fail(fault, "open", path, -opened);
    i64 result = call_fsync((int)opened);
    call_close((int)opened);
    return result < 0 ? system_fail(fault, "sync", path, -result) : SOV_OK;
}

enum sov_status platform_rename(const char *from, const char *to, struct sov_fault *fault) {
    i64 result = call_rename(from, to);
    return result < 0 ? system_fail(fault, "rename", from, -result) : SOV_OK;
}

enum sov_status platform_make_folder(const char *path, struct sov_fault *fault) {
    i64 result = call_mkdir(path, MODE_FOLDER);
    if (result < 0 && result != -EEXIST) return system_fail(fault, "make folder", path, -result);
    return SOV_OK;
}

enum sov_status platform_remove(const char *path, struct sov_fault *fault) {
    i64 result = call_unlink(path);
    return result < 0 ? system_fail(fault, "remove", path, -result) : SOV_OK;
}

enum sov_status platform_remove_folder(const char *path, struct sov_fault *fault) {
    i64 result = call_rmdir(path);
    return result < 0 ? system_fail(fault, "remove folder", path, -result) : SOV_OK;
}

bool platform_is_missing(const char *path) {
    i64 opened = call_open(path, O_RDONLY | O_CLOEXEC, 0);
    if (opened >= 0) call_close((int)opened);
    return opened == -ENOENT;
}

enum sov_status platform_truncate(int descriptor, u64 bytes, struct sov_fault *fault) {
    i64 result;
    do {
        result = call_ftruncate(descriptor, bytes);
    } while (result == -EINTR);
    if (result < 0) return system_fail_descriptor(fault, "cut", descriptor, -result);
    return SOV_OK;
}

enum sov_status platform_lock(int descriptor, struct sov_fault *fault) {
    i64 result;
    do {
        result = call_flock(descriptor, LOCK_EX | LOCK_NB);
    } while (result == -EINTR);
    if (result == -EAGAIN) {
        return fault_set(fault, SOV_ERR_STATE, "another process writes to this file");
    }
    if (result < 0) return system_fail_descriptor(fault, "lock", descriptor, -result);
    return SOV_OK;
}

enum sov_status platform_write(int descriptor, const void *buffer, usize bytes,
                               struct sov_fault *fault) {
    for (usize sum = 0; sum < bytes;) {
        i64 n = call_write(descriptor, (const u8 *)buffer + sum, bytes - sum);
        if (n == -EAGAIN) { // someone made our output non-blocking: wait for room
            struct linux_pollfd poll_on = {.descriptor = descriptor, .events = POLLOUT};
            call_ppoll(&poll_on, NULL, NULL);
        } else if (n >= 0) {
            sum += (usize)n;
        } else if (n != -EINTR) {
            return system_fail_descriptor(fault, "write", descriptor, -n);
        }
    }
    return SOV_OK;
}

// The kernel's entry of a folder: inode, offset, length of the entry, type, then the name.
#define DIRENT_LENGTH_OFF 16
#define DIRENT_NAME_OFF 19

enum sov_status platform_folder_names(const char *path, char *names, usize capacity, usize *n_bytes,
                                      struct sov_fault *fault) {
    i64 opened = call_open(path, O_RDONLY | O_CLOEXEC | O_DIRECTORY, 0);
    if (opened < 0) return system_fail(fault, "open", path, -opened);
    struct text out = text_over(names, capacity);
    u8 entries[4096];
    i64 n;
    while ((n = linux_syscall(LINUX_GETDENTS64, (u64)opened, (u64)entries, sizeof entries, 0, 0,
                              0)) > 0) {
        for (i64 at = 0; at < n; at += load_u16(entries + at + DIRENT_LENGTH_OFF)) {
            struct str name = str_from_z((const char *)entries + at + DIRENT_NAME_OFF);
            if (str_equal(name, STR(".")) || str_equal(name, STR(".."))) continue;
            text_put(&out, name);
            text_put_byte(&out, 0);
        }
    }
    call_close((int)opened);
    if (n < 0) return system_fail(fault, "list", path, -n);
    if (out.truncated) return fault_set(fault, SOV_ERR_LIMIT, "list %s: too many names", path);
    *n_bytes = out.len;
    return SOV_OK;
}

bool platform_is_terminal(int descriptor) {
    struct linux_termios settings;
    return call_ioctl(descriptor, IOCTL_TCGETS, &settings) == 0;
}

// --- the terminal ---

static_assert(sizeof(struct linux_termios) <= sizeof(struct platform_terminal), "there is room");

bool platform_terminal_raw(int descriptor, struct platform_terminal *before) {
    struct linux_termios settings = {0};
    if (call_ioctl(descriptor, IOCTL_TCGETS, &settings) < 0) return false;
    memcpy(before->settings, &settings, sizeof settings);
    settings.input &= ~(TERMIOS_BRKINT | TERMIOS_ISTRIP | TERMIOS_INLCR | TERMIOS_IGNCR |
                        TERMIOS_ICRNL | TERMIOS_IXON);
    settings.local &= ~(TERMIOS_ISIG | TERMIOS_ICANON | TERMIOS_ECHO | TERMIOS_IEXTEN);
    settings.characters[TERMIOS_VMIN] = 1;
    settings.characters[TERMIOS_VTIME] = 0;
    return call_ioctl(descriptor, IOCTL_TCSETSW, &settings) == 0;
}

void platform_terminal_restore(int descriptor, const struct platform_terminal *before) {
    struct linux_termios settings;
    memcpy(&settings, before->settings, sizeof settings);
    while (call_ioctl(descriptor, IOCTL_TCSETSW, &settings) == -EINTR) {
    }
}

u32 platform_terminal_columns(int descriptor) {
    struct linux_winsize size = {0};
    return call_ioctl(descriptor, IOCTL_TIOCGWINSZ, &size) == 0 ? size.columns : 0;
}

// --- memory ---

static void *pointer_from(i64 result) {
    return (void *)(usize)result; // NOLINT(performance-no-int-to-ptr): an address from the kernel
}

// As call_mmap, with the wish for huge pages: what is large begins at a multiple of their size,
// without which none can be used, and the system is told. That is worth 1.1x to 1.5x of the rate
// at which weights are read. A file's pages are huge only where its file system keeps them so
// (ext4 and XFS of newer kernels, tmpfs); the wish costs nothing elsewhere.
static i64 map_for_huge_pages(usize bytes, u32 protection, u32 flags, int descriptor) {
    if (bytes < HUGE_PAGE_BYTES || bytes > (usize)-1 - 2 * (usize)HUGE_PAGE_BYTES) {
        return call_mmap(bytes, protection, flags, descriptor);
    }
    usize whole = (usize)round_up(bytes, PAGE_BYTES), reserved = whole + HUGE_PAGE_BYTES;
    i64 start = call_mmap(reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1);
    if (start < 0) return call_mmap(bytes, protection, flags, descriptor);
    i64 at = (i64)round_up((u64)start, HUGE_PAGE_BYTES);
    usize before = (usize)(at - start), after = reserved - before - whole;
    i64 mapped = call_mmap_at(at, bytes, protection, flags | MAP_FIXED, descriptor);
    i64 result = 0;
    if (mapped < 0) {
        result = call_munmap(pointer_from(start), reserved);
    } else {
        if (before > 0) result = call_munmap(pointer_from(start), before);
        if (after > 0) result |= call_munmap(pointer_from(at + (i64)whole), after);
        // A kernel without huge pages says no, which is fine.
        (void)linux_syscall(LINUX_MADVISE, (u64)at, whole, MADV_HUGEPAGE, 0, 0, 0);
    }
    assert(result == 0);
    return mapped;
}

void *platform_memory_map(usize bytes) {
    i64 mapped = map_for_huge_pages(bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    if (mapped < 0) return NULL;
    __atomic_fetch_add(&linux_state.memory_bytes, bytes, __ATOMIC_RELAXED);
    return pointer_from(mapped);
}

void *platform_memory_map_at(void *address, usize bytes) {
    u32 flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
    i64 mapped = call_mmap_at((i64)address, bytes, PROT_READ | PROT_WRITE, flags, -1);
    if (mapped < 0) return NULL;
    if (pointer_from(mapped) != address) { // a kernel before 4.17 takes the flag for a hint
        call_munmap(pointer_from(mapped), bytes);
        return NULL;
    }
    __atomic_fetch_add(&linux_state.memory_bytes, bytes, __ATOMIC_RELAXED);
    return address;
}

void platform_memory_unmap(void *memory, usize bytes) {
    if (memory == NULL) return;
    i64 result = call_munmap(memory, bytes);
    assert(result == 0);
    __atomic_fetch_sub(&linux_state.memory_bytes, bytes, __ATOMIC_RELAXED);
}

u64 platform_memory_mapped(void) {
    return __atomic_load_n(&linux_state.memory_bytes, __ATOMIC_RELAXED);
}

enum sov_status platform_file_map(int descriptor, u64 bytes, const u8 **data,
                                  struct sov_fault *fault) {
    assert(bytes > 0);
    i64 mapped = map_for_huge_pages(bytes, PROT_READ, MAP_PRIVATE, descriptor);
    if (mapped < 0) return system_fail_descriptor(fault, "map", descriptor, -mapped);
    *data = pointer_from(mapped);
    return SOV_OK;
}

void platform_file_unmap(const u8 *data, u64 bytes) {
    i64 result = call_munmap(data, bytes);
    assert(result == 0);
}

// --- clocks and randomness ---

static u64 read_clock(u32 clock) {
    struct linux_timespec now = {0};
    i64 result = call_clock_gettime(clock, &now);
    assert(result == 0);
    return (u64)now.seconds * 1000000000 + (u64)now.nanoseconds;
}

u64 platform_monotonic_ns(void) { return read_clock(CLOCK_MONOTONIC); }
u64 platform_wall_ns(void) { return read_clock(CLOCK_REALTIME); }

void platform_sleep(u64 ns) {
    const u64 watched = SIGNAL_BIT(SIGINT) | SIGNAL_BIT(SIGTERM);
    u64 before = 0;
    call_rt_sigprocmask(SIG_BLOCK, &watched, &before); // none between the look and the sleep
    struct linux_timespec left = {(i64)(ns / 1000000000u), (i64)(ns % 1000000000u)};
    while (!platform_interrupted()) { // EINTR of another signal: the kernel left what remains
        if (linux_syscall(LINUX_PPOLL, 0, 0, (u64)&left, (u64)&before, sizeof before, 0) !=
            -EINTR) {
            break;
        }
    }
    call_rt_sigprocmask(SIG_SETMASK, &before, NULL);
}

enum sov_status platform_random(void *buffer, usize bytes, struct sov_fault *fault) {
    for (usize sum = 0; sum < bytes;) {
        u64 rest = (u64)buffer + sum;
        i64 n = linux_syscall(LINUX_GETRANDOM, rest, bytes - sum, 0, 0, 0, 0);
        if (n == -EINTR) continue;
        if (n < 0) return system_fail(fault, "read", "random bytes", -n);
        sum += (usize)n;
    }
    return SOV_OK;
}

// --- threads ---

struct platform_thread {
    platform_thread_main *main;
    void *argument;
    u8 *mapping;
    u32 id; // of the kernel; it writes 0 and wakes the joiner when the thread has ended
};
static_assert(sizeof(struct platform_thread) % 16 == 0, "the stack below it must be aligned");
#define THREAD_MAPPING_BYTES (PAGE_BYTES + PLATFORM_STACK_BYTES)

// 8,192 CPUs are the most that Linux can be built for.
bool platform_cpus_get(struct platform_cpus *cpus) {
    memset(cpus, 0, sizeof *cpus);
    return linux_syscall(LINUX_SCHED_GETAFFINITY, 0, sizeof *cpus, (u64)cpus, 0, 0, 0) > 0;
}

bool platform_cpus_set(const struct platform_cpus *cpus) {
    return linux_syscall(LINUX_SCHED_SETAFFINITY, 0, sizeof *cpus, (u64)cpus, 0, 0, 0) == 0;
}

u32 platform_cpu_count(void) {
    struct platform_cpus cpus;
    u32 count = 0;
    if (!platform_cpus_get(&cpus)) return 1;
    for (u32 i = 0; i < COUNT_OF(cpus.words); i++) {
        count += (u32)__builtin_popcountll(cpus.words[i]);
    }
    return MAX(count, 1u);
}

static _Noreturn void thread_entry(struct platform_thread *thread) {
    platform_float_control();
    thread->main(thread->argument);
    for (;;) linux_syscall(LINUX_EXIT, 0, 0, 0, 0, 0, 0);
}

#define CLONE_VM 0x100
#define CLONE_FS 0x200
#define CLONE_FILES 0x400
#define CLONE_SIGHAND 0x800
#define CLONE_THREAD 0x10000
#define CLONE_SYSVSEM 0x40000
#define CLONE_PARENT_SETTID 0x100000
#define CLONE_CHILD_CLEARTID 0x200000
#define CLONE_FLAGS_THREAD                                                              \
    (CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM | \
     CLONE_PARENT_SETTID | CLONE_CHILD_CLEARTID)

// The parent comes back with the thread's id or an error. The child starts after the same
// instruction, on its own stack, with every other register as the parent had it; it finds the
// function and its argument on the stack, which is a multiple of 16 after they are taken, and must
// not return into the parent's frame.
static i64 call_clone(struct platform_thread *thread) {
    u64 *stack = (u64 *)(void *)thread - 2;
    stack[0] = (u64)thread;
    stack[1] = (u64)thread_entry;
    const u64 id_address = (u64)&thread->id;
    i64 result;
    register u64 child_id __asm__("r10") = id_address;
    register u64 no_tls __asm__("r8") = 0;
    __asm__ volatile("syscall\n\t"
                     "testq %%rax, %%rax\n\t"
                     "jnz 1f\n\t"
                     "xorl %%ebp, %%ebp\n\t"
                     "popq %%rdi\n\t"
                     "popq %%rax\n\t"
                     "call *%%rax\n\t"
                     "hlt\n"
                     "1:"
                     : "=a"(result)
                     : "a"((u64)LINUX_CLONE), "D"((u64)CLONE_FLAGS_THREAD), "S"(stack),
                       "d"(id_address), "r"(child_id), "r"(no_tls)
                     : "rcx", "r11", "cc", "memory");
    return result;
}

// Maps the stack and puts an empty struct platform_thread at its end. NULL when refused.
static struct platform_thread *map_thread(i64 *error) {
    i64 mapped =
        call_mmap(THREAD_MAPPING_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1);
    *error = -mapped;
    if (mapped < 0) return NULL;
    u8 *mapping = pointer_from(mapped);
    i64 result = call_mprotect(mapping + PAGE_BYTES, PLATFORM_STACK_BYTES, PROT_READ | PROT_WRITE);
    *error = -result;
    if (result < 0) {
        call_munmap(mapping, THREAD_MAPPING_BYTES);
        return NULL;
    }
    u8 *end = mapping + THREAD_MAPPING_BYTES;
    struct platform_thread *thread = (struct platform_thread *)(void *)(end - sizeof *thread);
    thread->mapping = mapping;
    return thread;
}

static void unmap_thread(struct platform_thread *thread) {
    i64 result = call_munmap(thread->mapping, THREAD_MAPPING_BYTES);
    assert(result == 0);
    __atomic_sub_fetch(&linux_state.n_threads, 1, __ATOMIC_RELAXED);
}

enum sov_status platform_thread_start(platform_thread_main *main, void *argument,
                                      struct platform_thread **thread, struct sov_fault *fault) {
    u32 n_threads = __atomic_add_fetch(&linux_state.n_threads, 1, __ATOMIC_RELAXED);
    i64 error = 0;
    struct platform_thread *started = NULL;
    if (n_threads <= PLATFORM_THREADS_MAX) started = map_thread(&error);
    if (started == NULL) {
        __atomic_sub_fetch(&linux_state.n_threads, 1, __ATOMIC_RELAXED);
        if (error != 0) return system_fail(fault, "map the stack of", "a thread", error);
        return fault_set(fault, SOV_ERR_LIMIT, "start a thread: %d are running, the limit",
                         PLATFORM_THREADS_MAX);
    }
    started->main = main;
    started->argument = argument;
    u64 before = platform_signals_hold(); // the thread inherits it
    i64 result = call_clone(started);
    platform_signals_release(before);
    if (result < 0) {
        unmap_thread(started);
        return system_fail(fault, "start", "a thread", -result);
    }
    *thread = started;
    return SOV_OK;
}

// The kernel's wake-up at a thread's end is one for shared futexes, so the wait must be too.
void platform_thread_join(struct platform_thread *thread) {
    for (;;) {
        u32 id = __atomic_load_n(&thread->id, __ATOMIC_ACQUIRE);
        if (id == 0) break;
        call_futex(&thread->id, FUTEX_WAIT, id);
    }
    unmap_thread(thread);
}

void platform_wait(const u32 *word, u32 expected) {
    call_futex(word, FUTEX_WAIT_PRIVATE, expected);
}

void platform_wake_all(const u32 *word) { call_futex(word, FUTEX_WAKE_PRIVATE, INT_MAX); }

// --- signals ---

// Where a handler returns to.
__attribute__((naked)) static void signal_restorer(void) {
    __asm__("movl $15, %eax\n\t" // LINUX_RT_SIGRETURN
            "syscall");
}
static_assert(LINUX_RT_SIGRETURN == 15, "the number in signal_restorer");

static void on_power(int number) {
    __atomic_store_n(&linux_state.suspended, number == SIGUSR1 ? 1 : 0, __ATOMIC_RELAXED);
}

void platform_watch_power(void) {
    const struct linux_sigaction action = {
        .handler = on_power,
        .flags = SA_RESTORER,
        .restorer = signal_restorer,
    };
    call_rt_sigaction(SIGUSR1, &action);
    call_rt_sigaction(SIGUSR2, &action);
}

u64 platform_signals_hold(void) {
    const u64 blocked = ~SIGNAL_BIT(SIGABRT);
    u64 before = 0;
    call_rt_sigprocmask(SIG_SETMASK, &blocked, &before);
    return before;
}

void platform_signals_release(u64 before) { call_rt_sigprocmask(SIG_SETMASK, &before, NULL); }

const u32 *platform_suspend_word(void) { return &linux_state.suspended; }

// The first signal is noted. A second one takes its default course as soon as this returns.
static void on_interrupt(int number) {
    if (__atomic_exchange_n(&linux_state.interrupted, (u32)number, __ATOMIC_RELAXED) == 0) return;
    const struct linux_sigaction by_default = {.handler = SIG_DFL};
    call_rt_sigaction(number, &by_default);
    raise_signal(number);
}

void platform_watch_interrupt(void) {
    const struct linux_sigaction action = {
        // no SA_RESTART: a waiting read ends
        .handler = on_interrupt,
        .flags = SA_RESTORER,
        .restorer = signal_restorer,
    };
    __atomic_store_n(&linux_state.watching, 1, __ATOMIC_RELAXED);
    call_rt_sigaction(SIGINT, &action);
    call_rt_sigaction(SIGTERM, &action);
}

bool platform_interrupted(void) {
    return __atomic_load_n(&linux_state.interrupted, __ATOMIC_RELAXED) != 0;
}

bool platform_terminated(void) {
    return __atomic_load_n(&linux_state.interrupted, __ATOMIC_RELAXED) == SIGTERM;
}

bool platform_forget_interrupt(void) {
    u32 expected = SIGINT;
    __atomic_compare_exchange_n(&linux_state.interrupted, &expected, 0, false, __ATOMIC_RELAXED,
                                __ATOMIC_RELAXED);
    return !platform_interrupted();
}
