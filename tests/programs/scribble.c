/* Holds so many MiB, half chance and half text, says "ready" with their address and size, and waits for lines. For each it writes over
 * every page, and says "written". Ends with its input. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

static void fill(uint64_t *words, size_t count, uint64_t seed) {
    uint64_t state = seed * 2654435761u + 88172645463325252u;
    for (size_t i = 0; i < count; i++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        words[i] = i & 256 ? state : seed;
    }
}

int main(int argc, char **argv) {
    const size_t bytes = (argc > 1 ? strtoull(argv[1], 0, 10) : 8) << 20;
    uint64_t *words = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (words == MAP_FAILED) return 1;
    uint64_t seed = 1;
    fill(words, bytes / 8, seed);
    printf("ready %lu %lu\n", (unsigned long)words, (unsigned long)bytes);
    fflush(stdout);
    char line[64];
    while (fgets(line, sizeof line, stdin)) {
        fill(words, bytes / 8, ++seed);
        puts("written");
        fflush(stdout);
    }
    return 0;
}
