// Preloaded into a Python process: the character devices of RDMA and their ioctls and mmaps end in Python code of that same process
// (uverbs.process), which plays the kernel's part. Everything above them is real: libibverbs, libmlx5, pyverbs.
//
// * open("/dev/infiniband/uverbsN") opens /dev/zero: a character device, and libibverbs checks no more than that and the device number
//   that sysfs gives (SYSFS_PATH leads it to a fabricated tree). So nothing is created on the machine, and no root is needed.
// * ioctl and close of such a descriptor call Python; mmap maps the card's register pages instead (uverbs_registers).
// * socket(AF_NETLINK, ..., NETLINK_RDMA) fails: where ib_core is loaded, libibverbs would otherwise find the machine's own devices.
//
// gcc -shared -fPIC -o shim.so shim.c -ldl
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/netlink.h>
#include <stdarg.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#define MAX_FDS 65536
#define DEVICES "/dev/infiniband/uverbs"

// Answers of Python: a result that is not negative, or -errno.
typedef int (*open_handler)(int fd, const char *name);
typedef int (*ioctl_handler)(int fd, void *header);
typedef void (*close_handler)(int fd);

static open_handler on_open;
static ioctl_handler on_ioctl;
static close_handler on_close;
static unsigned char ours[MAX_FDS];
static int registers[MAX_FDS];

// --- called by Python ------------------------------------------------------------------------------------------------------------

void uverbs_install(open_handler opened, ioctl_handler called, close_handler closed) {
    on_open = opened;
    on_ioctl = called;
    on_close = closed;
}

// What mmap of a device's descriptor maps from now on.
void uverbs_registers(int fd, int memory) { registers[fd] = memory; }

// --- called by everybody ---------------------------------------------------------------------------------------------------------

#define REAL(name, result, ...)                                                                                                    \
    static result (*real)(__VA_ARGS__);                                                                                            \
    if (!real) real = (result (*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)

static int is_ours(int fd) { return fd >= 0 && fd < MAX_FDS && ours[fd]; }

// The kernel's part is loaded when the first device is opened; only a process that is a Python interpreter has one.
static int load(void) {
    if (on_open) return 1;
    int (*initialized)(void) = (int (*)(void))dlsym(RTLD_DEFAULT, "Py_IsInitialized");
    int (*ensure)(void) = (int (*)(void))dlsym(RTLD_DEFAULT, "PyGILState_Ensure");
    void (*release)(int) = (void (*)(int))dlsym(RTLD_DEFAULT, "PyGILState_Release");
    int (*run)(const char *, void *) = (int (*)(const char *, void *))dlsym(RTLD_DEFAULT, "PyRun_SimpleStringFlags");
    if (!initialized || !ensure || !release || !run || !initialized()) return 0;
    int state = ensure();
    run("import uverbs.process\nuverbs.process.install()\n", NULL);
    release(state);
    return on_open != NULL;
}

static int open_device(const char *path, int flags) {
    REAL("open", int, const char *, int, ...);
    if (!load()) {
        errno = ENOENT;
        return -1;
    }
    int fd = real("/dev/zero", flags);
    if (fd < 0) return fd;
    int answer = fd < MAX_FDS ? on_open(fd, path + strlen("/dev/infiniband/")) : -EMFILE;
    if (answer < 0) {
        close(fd);
        errno = -answer;
        return -1;
    }
    ours[fd] = 1;
    registers[fd] = -1;
    return fd;
}

static int is_device(const char *path) { return path && !strncmp(path, DEVICES, strlen(DEVICES)); }

static mode_t mode_of(int flags, va_list more) { return flags & (O_CREAT | __O_TMPFILE) ? va_arg(more, mode_t) : 0; }

int open(const char *path, int flags, ...) {
    REAL("open", int, const char *, int, ...);
    if (is_device(path)) return open_device(path, flags);
    va_list more;
    va_start(more, flags);
    mode_t mode = mode_of(flags, more);
    va_end(more);
    return real(path, flags, mode);
}

int open64(const char *path, int flags, ...) {
    REAL("open64", int, const char *, int, ...);
    if (is_device(path)) return open_device(path, flags);
    va_list more;
    va_start(more, flags);
    mode_t mode = mode_of(flags, more);
    va_end(more);
    return real(path, flags, mode);
}

// libibverbs looks at a device file before it lists the device, and others may want to know whether it is there.
int stat(const char *path, struct stat *status) {
    REAL("stat", int, const char *, struct stat *);
    return real(is_device(path) ? "/dev/zero" : path, status);
}

int stat64(const char *path, struct stat64 *status) {
    REAL("stat64", int, const char *, struct stat64 *);
    return real(is_device(path) ? "/dev/zero" : path, status);
}

int access(const char *path, int mode) {
    REAL("access", int, const char *, int);
    return real(is_device(path) ? "/dev/zero" : path, mode);
}

int close(int fd) {
    REAL("close", int, int);
    if (is_ours(fd)) {
        ours[fd] = 0;
        if (on_close) on_close(fd);
    }
    return real(fd);
}

int ioctl(int fd, unsigned long request, ...) {
    REAL("ioctl", int, int, unsigned long, void *);
    va_list more;
    va_start(more, request);
    void *argument = va_arg(more, void *);
    va_end(more);
    if (!is_ours(fd)) return real(fd, request, argument);
    int answer = on_ioctl ? on_ioctl(fd, argument) : -ENODEV;
    if (answer < 0) {
        errno = -answer;
        return -1;
    }
    return answer;
}

void *mmap(void *at, size_t nbytes, int protection, int flags, int fd, off_t offset) {
    REAL("mmap", void *, void *, size_t, int, int, int, off_t);
    if (!is_ours(fd)) return real(at, nbytes, protection, flags, fd, offset);
    if (registers[fd] < 0) {
        errno = ENODEV;
        return MAP_FAILED;
    }
    return real(at, nbytes, protection, flags, registers[fd], offset);
}

void *mmap64(void *at, size_t nbytes, int protection, int flags, int fd, off_t offset) {
    return mmap(at, nbytes, protection, flags, fd, offset);
}

int socket(int domain, int type, int protocol) {
    REAL("socket", int, int, int, int);
    if (domain == AF_NETLINK && protocol == NETLINK_RDMA) {
        errno = EPROTONOSUPPORT;
        return -1;
    }
    return real(domain, type, protocol);
}
