/* Changes its memory all the time, in one region whose address and size it tells: pages of its own, of a private mapping of a
 * file, and of shared memory; by itself and by the kernel, in place and by putting other memory there. Arguments: a seed, and how
 * many processes do so: children have the same region, of which only the shared memory is the same. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE 4096UL
#define PAGES 256UL
#define AREAS 6UL

static unsigned long seed;
static char *areas[AREAS];
static int file, shared, zeros;

static unsigned long below(unsigned long end) {
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return seed % end;
}

static void map(char *at, unsigned long pages, int flags, int fd, unsigned long offset) {
    if (mmap(at, pages * PAGE, PROT_READ | PROT_WRITE, flags | MAP_FIXED, fd, offset) != at) {
        perror("mmap");
        exit(1);
    }
}

static void act(void) {
    char *area = areas[below(AREAS)];
    unsigned long page = below(PAGES - 8), pages = 1 + below(8);
    char *at = area + page * PAGE;
    const int private = MAP_PRIVATE | MAP_ANONYMOUS;
    switch (below(10)) {
    case 0:
        if (read(zeros, at + 8, pages * 40) < 0) exit(1);
        break;
    case 1:
        if (pread(file, areas[0] + page * PAGE, pages * PAGE, 0) < 0) exit(1);
        break;
    case 2:
        madvise(at, pages * PAGE, MADV_DONTNEED);
        break;
    case 3:
        map(areas[1] + page * PAGE, pages, private, -1, 0);
        break;
    case 4:
        map(areas[2] + page * PAGE, pages, MAP_PRIVATE, file, page * PAGE);
        break;
    case 5:
        /* The pages move, and none are left; there is never a hole, so that the region can be read at any time. */
        if (mremap(areas[3], PAGES * PAGE, PAGES * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP, areas[4]) !=
            areas[4])
            exit(1);
        memset(areas[3] + page * PAGE, page, PAGE);
        break;
    case 6:
        if (pwrite(shared, &seed, sizeof seed, page * PAGE) < 0) exit(1);
        break;
    default:
        for (int i = 0; i < 10; i++) *(unsigned long *)(area + below(PAGES) * PAGE + below(500) * 8) = below(~0UL);
    }
}

int main(int argc, char **argv) {
    seed = argc > 1 ? strtoul(argv[1], 0, 10) * 7919 + 1 : 1;
    char *region = mmap(0, AREAS * PAGES * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (region == MAP_FAILED) return 1;
    file = open("mapped", O_RDWR | O_CREAT, 0600);
    shared = memfd_create("shared", 0);
    zeros = open("/dev/urandom", O_RDONLY);
    if (file < 0 || shared < 0 || zeros < 0 || ftruncate(shared, PAGES * PAGE) != 0) return 1;
    for (unsigned long page = 0; page < PAGES; page++) {
        char content[PAGE];
        memset(content, 'a' + page % 26, PAGE);
        if (pwrite(file, content, PAGE, page * PAGE) != PAGE) return 1;
    }
    for (unsigned long i = 0; i < AREAS; i++) {
        areas[i] = region + i * PAGES * PAGE;
        if (i == 2) map(areas[i], PAGES, MAP_PRIVATE, file, 0);
        else if (i == 5) map(areas[i], PAGES, MAP_SHARED, shared, 0);
        else map(areas[i], PAGES, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        memset(areas[i], 1 + i, PAGES / 2 * PAGE);
    }
    const int processes = argc > 2 ? atoi(argv[2]) : 1;
    for (int child = 1; child < processes; child++) {
        if (fork() == 0) {
            seed += child * 104729;
            for (;;) {
                act();
                if (below(64) == 0) usleep(100);
            }
        }
    }
    printf("ready %lu %lu\n", (unsigned long)region, AREAS * PAGES * PAGE);
    fflush(stdout);
    for (;;) {
        act();
        if (below(64) == 0) usleep(100);
    }
}
