// A program all of whose memory is its own, or of a file with a name, as is most programs': it gives advice on some of that, and
// writes to all of it meanwhile. Copies of a process lack parts of such memory, and some of the flags.
#include "../../kinds/programs/check.h"
#include <linux/userfaultfd.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>

#define PAGES 64
#define AREAS 12

static char *areas[AREAS];
static int count;
static char before[AREAS][256];
static volatile int stop;
static pthread_t writer;
static char *removed;

static char *map(int flags, int file) {
    char *area = mmap(0, PAGES * 4096, PROT_READ | PROT_WRITE, flags, file, 0);
    EXPECT(area != MAP_FAILED && count < AREAS);
    // So that it is not joined to the one before.
    mmap(0, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    areas[count++] = area;
    return area;
}

static char *advised(int advice) {
    char *area = map(MAP_PRIVATE | MAP_ANONYMOUS, -1);
    if (advice) EQUAL(madvise(area, PAGES * 4096, advice), 0);
    return area;
}

static int named_file(const char *name) {
    int file = open(name, O_RDWR | O_CREAT, 0600);
    EXPECT(file >= 0);
    EQUAL(ftruncate(file, PAGES * 4096), 0);
    return file;
}

// The flags of an area, and its permissions.
static void look(const char *area, char *flags) {
    char line[512];
    int found = 0;
    FILE *file = fopen("/proc/self/smaps", "r");
    flags[0] = 0;
    while (fgets(line, sizeof line, file)) {
        unsigned long start, end;
        char permissions[8];
        if (sscanf(line, "%lx-%lx %7s", &start, &end, permissions) == 3) {
            found = (unsigned long)area >= start && (unsigned long)area < end;
            if (found) strcpy(flags, permissions);
        } else if (found && !strncmp(line, "VmFlags:", 8))
            snprintf(flags + strlen(flags), 200, "%.190s", line + 8);
    }
    fclose(file);
    // Whether our own tracking has it at the moment is not the program's affair, nor what was written.
    for (char *at; (at = strstr(flags, " uw")) || (at = strstr(flags, " sd"));)
        memmove(at, at + 3, strlen(at + 3) + 1);
}

static void *write_all(void *unused) {
    for (long round = 1; !stop && !failures; round++)
        for (int area = 0; area < count; area++)
            for (int page = 0; page < PAGES; page++) {
                volatile long *at = (long *)(areas[area] + page * 4096);
                if (*at != round - 1) {
                    printf("area %d, page %d has %ld in round %ld\n", area, page, *at, round);
                    failures++;
                    return unused;
                }
                *at = round;
            }
    return unused;
}

// Somebody who is no descendant has a userfaultfd of this process, and ends with it.
static void watch(void *area) {
    int uffd = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | 1 /* UFFD_USER_MODE_ONLY */);
    EXPECT(uffd >= 0);
    struct uffdio_api api = {.api = UFFD_API};
    EQUAL(ioctl(uffd, UFFDIO_API, &api), 0);
    struct uffdio_register all = {
        .range = {(unsigned long)area, PAGES * 4096}, .mode = UFFDIO_REGISTER_MODE_MISSING};
    EQUAL(ioctl(uffd, UFFDIO_REGISTER, &all), 0);
    int self = syscall(SYS_pidfd_open, getpid(), 0);
    pid_t child = fork();
    if (child == 0) {
        if (fork() == 0) {
            // Nothing else of ours is to stay open.
            dup2(uffd, 3);
            dup2(self, 4);
            syscall(SYS_close_range, 5, ~0U, 0);
            for (int fd = 0; fd < 3; fd++) close(fd);
            struct pollfd end = {.fd = 4, .events = POLLIN};
            while (poll(&end, 1, -1) != 1) {
            }
        }
        _exit(0);
    }
    EQUAL(waitpid(child, 0, 0), child);
    close(uffd);
    close(self);
}

int main(int argc, char **argv) {
    const char *kind = argc > 1 ? argv[1] : "plain";
    char flags[256];
    advised(0);
    advised(MADV_WIPEONFORK);
    advised(MADV_DONTDUMP);
    advised(MADV_HUGEPAGE);
    advised(MADV_SEQUENTIAL);
    map(MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1);
    map(MAP_PRIVATE, named_file("private"));
    if (!strcmp(kind, "left-out")) advised(MADV_DONTFORK);
    if (!strcmp(kind, "nameless")) map(MAP_SHARED | MAP_ANONYMOUS, -1);
    if (!strcmp(kind, "locked")) EQUAL(mlock(advised(0), PAGES * 4096), 0);
    // The program may not make this writable, but that.
    int file = named_file("shared");
    int fixed = open("shared", O_RDONLY);
    char *shared = mmap(0, PAGES * 4096, PROT_READ, MAP_SHARED, file, 0);
    char *never = mmap(0, PAGES * 4096, PROT_READ, MAP_SHARED, fixed, 0);
    EXPECT(shared != MAP_FAILED && never != MAP_FAILED);
    const int both = PROT_READ | PROT_WRITE;
    if (!strcmp(kind, "watched"))
        watch(mmap(0, PAGES * 4096, both, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (!strcmp(kind, "watched-file")) {
        char name[64];
        snprintf(name, sizeof name, "/dev/shm/snapify-test-%d", getpid());
        watch(mmap(0, PAGES * 4096, both, MAP_SHARED, named_file(name), 0));
        removed = strdup(name);
    }
    EQUAL(pthread_create(&writer, 0, write_all, 0), 0);
    for (int area = 0; area < count; area++) look(areas[area], before[area]);
    pause_here();
    stop = 1;
    EQUAL(pthread_join(writer, 0), 0);
    for (int area = 0; area < count; area++) {
        look(areas[area], flags);
        if (strcmp(flags, before[area])) {
            printf("area %d: %s, before: %s", area, flags, before[area]);
            failures++;
        }
    }
    EQUAL(mprotect(shared, PAGES * 4096, PROT_READ | PROT_WRITE), 0);
    EQUAL(mprotect(never, PAGES * 4096, PROT_READ | PROT_WRITE), -1);
    if (removed) unlink(removed);
    return finish();
}
