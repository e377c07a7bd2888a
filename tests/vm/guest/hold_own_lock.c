/* Holds the lock of its own memory map, so that readers of its /proc/PID/cmdline, maps and smaps_rollup wait.
 *
 *   hold_own_lock DEVICE SECONDS
 *
 * No privilege is needed: in a user namespace of its own it mounts a FUSE that it serves itself, maps a file of it and
 * makes a page dirty. A second mapping, of the same file opened for direct I/O, takes the lock for writing and has the
 * dirty page written back first; the server never answers. After SECONDS it ends, and with it the wait. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/uio.h>
#include <unistd.h>

static void must(int done, const char *what)
{
    if (!done) {
        perror(what);
        exit(1);
    }
}

static void put(const char *path, const char *text)
{
    int file = open(path, O_WRONLY);
    must(file >= 0 && write(file, text, strlen(text)) > 0, path);
    close(file);
}

static void answer(int device, uint64_t request, int error, void *data, size_t size)
{
    struct fuse_out_header head = {.len = sizeof head + size, .error = error, .unique = request};
    struct iovec parts[] = {{&head, sizeof head}, {data, size}};
    must(writev(device, parts, size ? 2 : 1) > 0, "answer");
}

static struct fuse_attr attributes(int folder)
{
    return (struct fuse_attr){
        .ino = folder ? 1 : 2, .size = folder ? 0 : 1 << 20, .mode = folder ? 040755 : 0100644, .nlink = 1, .blksize = 4096};
}

static void hold(const char *folder)
{
    char path[256];
    snprintf(path, sizeof path, "%s/file", folder);
    int file = open(path, O_RDWR);
    must(file >= 0, path);
    char *page = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    must(page != MAP_FAILED, "map");
    page[0] = 1;
    int direct = open(path, O_RDWR);
    must(direct >= 0, "open for direct I/O");
    printf("%d\n", getpid());
    fflush(stdout);
    mmap(0, 4096, PROT_READ, MAP_PRIVATE, direct, 0);
    _exit(0);
}

static void serve(int device)
{
    static char request[1 << 17];
    static uint64_t opened;
    for (;;) {
        ssize_t size = read(device, request, sizeof request);
        if (size < 0 && errno == EINTR)
            continue;
        must(size > 0, "requests");
        struct fuse_in_header *head = (void *)request;
        switch (head->opcode) {
        case FUSE_INIT: {
            struct fuse_init_out out = {.major = 7, .minor = 31, .max_readahead = 4096, .max_write = 1 << 16, .max_background = 8};
            answer(device, head->unique, 0, &out, sizeof out);
            break;
        }
        case FUSE_LOOKUP: {
            struct fuse_entry_out out = {.nodeid = 2, .entry_valid = 1000, .attr_valid = 1000, .attr = attributes(0)};
            answer(device, head->unique, 0, &out, sizeof out);
            break;
        }
        case FUSE_GETATTR: {
            struct fuse_attr_out out = {.attr_valid = 1000, .attr = attributes(head->nodeid == 1)};
            answer(device, head->unique, 0, &out, sizeof out);
            break;
        }
        case FUSE_OPEN: {
            struct fuse_open_out out = {.fh = ++opened, .open_flags = FOPEN_KEEP_CACHE | (opened > 1 ? FOPEN_DIRECT_IO : 0)};
            answer(device, head->unique, 0, &out, sizeof out);
            break;
        }
        case FUSE_READ: {
            static char zeros[4096];
            answer(device, head->unique, 0, zeros, sizeof zeros);
            break;
        }
        case FUSE_WRITE: /* the page that the second mapping waits for */
        case FUSE_FORGET:
        case FUSE_INTERRUPT:
            break;
        default:
            answer(device, head->unique, -ENOSYS, 0, 0);
        }
    }
}

int main(int count, char **words)
{
    char map[32], folder[] = "/tmp/heldXXXXXX", options[128];
    int user = getuid(), group = getgid();
    must(count == 3 && unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0, "namespaces");
    put("/proc/self/setgroups", "deny");
    snprintf(map, sizeof map, "0 %d 1", user);
    put("/proc/self/uid_map", map);
    snprintf(map, sizeof map, "0 %d 1", group);
    put("/proc/self/gid_map", map);
    must(mount(0, "/", 0, MS_REC | MS_PRIVATE, 0) == 0, "private mounts");
    int device = open(words[1], O_RDWR);
    must(device >= 0 && mkdtemp(folder) != 0, words[1]);
    snprintf(options, sizeof options, "fd=%d,rootmode=40000,user_id=0,group_id=0", device);
    must(mount("held", folder, "fuse", MS_NOSUID | MS_NODEV, options) == 0, "mount");
    if (fork() == 0) {
        close(device); /* its end must close the connection, or the wait would outlast it */
        hold(folder);
    }
    alarm(atoi(words[2]));
    serve(device);
}
