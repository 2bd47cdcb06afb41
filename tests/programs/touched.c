/* Holds MEBIBYTES of memory in small or huge pages, one word of each 4 KiB written (the rest is zero), says "ready", then
 * waits for lines on its standard input: at "fork" it forks, at "write N" it writes to every N-th page, and tells how many
 * nanoseconds that took; the end of input ends it. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * UINT64_C(1000000000) + t.tv_nsec;
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
        const pid_t child = fork();
        if (child == 0) _exit(0);
        const uint64_t end = now();
        waitpid(child, 0, 0);
        printf("%llu\n", (unsigned long long)(end - begin));
        fflush(stdout);
    }
    return 0;
}
