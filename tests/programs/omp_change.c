/* Holds so many MiB of chance in a buffer on a card, in memory that the offload process has by itself, and in the host process.
   Says "memory" with address and size of each of the three, then "sum 0: " and digests of them. For each line on standard input, a number, it changes so many words of each and says the
   digests again, as "sum 1: " and so on. Ends with its input. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#pragma omp declare target
static uint64_t *own;

static uint64_t next(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static void change(uint64_t *words, long count, long changes, uint64_t seed) {
    uint64_t state = seed * 2654435761u + 88172645463325252u;
    if (changes < 0)
        for (long i = 0; i < count; i++) words[i] = next(&state);
    for (long i = 0; i < changes; i++) {
        long at = next(&state) % count;
        words[at] = next(&state);
    }
}

static uint64_t digest(const uint64_t *words, long count) {
    uint64_t sum = 0;
    for (long i = 0; i < count; i++) sum = sum * 31 + words[i];
    return sum;
}
#pragma omp end declare target

int main(int argc, char **argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: omp_change MIB\n");
        return 2;
    }
    const long count = atol(argv[1]) * (1L << 20) / 8;
    uint64_t *words = malloc(count * 8), *here = malloc(count * 8);
    if (!words || !here) return 1;
#pragma omp target enter data map(alloc : words[0 : count])
    uint64_t buffer_at = 0, own_at = 0;
#pragma omp target map(tofrom : buffer_at, own_at) map(to : words[0 : count])
    {
        own = malloc(count * 8);
        buffer_at = (uint64_t)words;
        own_at = (uint64_t)own;
    }
    const uint64_t bytes = count * 8;
    printf("memory %lu %lu %lu %lu %lu %lu\n", buffer_at, bytes, own_at, bytes, (uint64_t)here, bytes);
    long changes = -1;
    char line[64];
    for (uint64_t round = 0;; round++) {
        uint64_t on_card = 0, in_process = 0;
#pragma omp target map(tofrom : on_card, in_process) map(to : words[0 : count])
        {
            change(words, count, changes, 3 * round);
            change(own, count, changes, 3 * round + 1);
            on_card = digest(words, count);
            in_process = digest(own, count);
        }
        change(here, count, changes, 3 * round + 2);
        printf("sum %lu: %016lx %016lx %016lx\n", round, on_card, in_process, digest(here, count));
        fflush(stdout);
        if (!fgets(line, sizeof line, stdin)) break;
        changes = atol(line);
    }
#pragma omp target exit data map(delete : words[0 : count])
    free(words);
    free(here);
    return 0;
}
