/* Holds so many MiB of incompressible bytes on a card. Says "ready"; then, for each line on standard input, the sum of them,
   computed on the card. Ends with its input. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: omp_hold MIB\n");
        return 2;
    }
    long count = atol(argv[1]) * (1L << 20) / 8;
    uint64_t *words = malloc(count * 8);
    if (!words)
        return 1;
#pragma omp target enter data map(alloc : words[0 : count])
#pragma omp target
    {
        uint64_t state = 88172645463325252u;
        for (long i = 0; i < count; i++) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            words[i] = state;
        }
    }
    printf("ready\n");
    fflush(stdout);
    char line[64];
    while (fgets(line, sizeof line, stdin)) {
        uint64_t sum = 0;
#pragma omp target map(tofrom : sum)
        for (long i = 0; i < count; i++)
            sum = sum * 31 + words[i];
        printf("sum %016lx\n", sum);
        fflush(stdout);
    }
#pragma omp target exit data map(delete : words[0 : count])
    free(words);
    return 0;
}
