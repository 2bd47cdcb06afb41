/* Holds MEBIBYTES of memory in small or huge pages, one word of each 4 KiB written (the rest is zero), says "ready", then
 * waits for lines on its standard input, and tells how many nanoseconds it took what they ask for: at "fork" it forks; at "write N"
 * it writes to every N-th page; at "arm" it has the kernel follow its writes, with nothing but the calls that this takes; at "scan" it
 * asks which pages were written since, has them followed again, and then ends that. The end of input ends it. */
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * UINT64_C(1000000000) + t.tv_nsec;
}

/* struct pm_scan_arg and struct page_region of linux/fs.h, which older headers lack. */
struct scan {
    uint64_t size, flags, start, end, walk_end, regions, count, most, inverted, all, any, reported;
};
struct region {
    uint64_t start, end, categories;
};
enum { PROTECT = 1, WRITTEN = 2, PRESENT = 8, ZERO = 32 };

static int uffd = -1, pagemap = -1;

/* Write-protects all pages, whatever they are. */
static int protect(char *memory, size_t bytes) {
    struct scan scan = {.size = sizeof scan, .flags = PROTECT, .start = (uintptr_t)memory, .end = (uintptr_t)memory + bytes};
    return ioctl(pagemap, _IOWR('f', 16, struct scan), &scan);
}

static int arm(char *memory, size_t bytes) {
    uffd = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | 1);
    pagemap = open("/proc/self/pagemap", O_RDONLY);
    /* Write protection by the kernel alone, also of what is not there yet. */
    struct uffdio_api api = {.api = UFFD_API, .features = 1 << 15 | 1 << 13 | 1};
    struct uffdio_register area = {.range = {(uintptr_t)memory, bytes}, .mode = UFFDIO_REGISTER_MODE_WP};
    if (ioctl(uffd, UFFDIO_API, &api) != 0 || ioctl(uffd, UFFDIO_REGISTER, &area) != 0) return -1;
    return protect(memory, bytes);
}

/* Finds the pages that are written, zero or absent, and protects all again. */
static int scan_again(char *memory, size_t bytes) {
    static struct region regions[4096];
    const uint64_t end = (uintptr_t)memory + bytes, kinds = PRESENT | WRITTEN | ZERO;
    for (uint64_t at = (uintptr_t)memory; at < end;) {
        struct scan scan = {.size = sizeof scan, .start = at, .end = end, .regions = (uintptr_t)regions, .count = 4096};
        scan.inverted = PRESENT;
        scan.any = scan.reported = kinds;
        if (ioctl(pagemap, _IOWR('f', 16, struct scan), &scan) < 0 || scan.walk_end <= at) return -1;
        at = scan.walk_end;
    }
    return protect(memory, bytes);
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    const size_t bytes = strtoull(argv[1], 0, 10) << 20, huge = 2 << 20;
    char *start = mmap(0, bytes + huge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start == MAP_FAILED) return __LINE__;
    char *memory = (char *)(((uintptr_t)start + huge - 1) / huge * huge);
    if (madvise(memory, bytes, strcmp(argv[2], "huge") ? MADV_NOHUGEPAGE : MADV_HUGEPAGE)) return __LINE__;
    for (size_t at = 0; at < bytes; at += 4096) *(uint64_t *)(memory + at) = at + 1;
    puts("ready");
    fflush(stdout);
    char line[64];
    while (fgets(line, sizeof line, stdin)) {
        size_t every = 0;
        const uint64_t begin = now();
        if (sscanf(line, "write %zu", &every) == 1 && every > 0) {
            for (size_t at = 0; at < bytes; at += every * 4096) ++*(uint64_t *)(memory + at);
            printf("%llu\n", (unsigned long long)(now() - begin));
            fflush(stdout);
            continue;
        }
        if (strcmp(line, "arm\n") == 0 || strcmp(line, "scan\n") == 0) {
            if ((*line == 'a' ? arm : scan_again)(memory, bytes) < 0) return __LINE__;
            printf("%llu\n", (unsigned long long)(now() - begin));
            fflush(stdout);
            if (*line == 's') {
                close(uffd);
                close(pagemap);
            }
            continue;
        }
        const pid_t child = fork();
        if (child == 0) _exit(0);
        const uint64_t end = now();
        waitpid(child, 0, 0);
        printf("%llu\n", (unsigned long long)(end - begin));
        fflush(stdout);
    }
    return 0;
}
