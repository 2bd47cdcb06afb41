/* Holds so many MiB of incompressible bytes on a card, in one buffer or in several. Says "ready"; then, for each line on standard
 * input, the sum of them, computed on the card. Ends with its input.
 * usage: omp_hold MIB [BUFFERS] */
#include <omp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
    const long mebibytes = argc > 1 ? atol(argv[1]) : 0, buffers = argc > 2 ? atol(argv[2]) : 1;
    if (mebibytes <= 0 || buffers <= 0) {
        fprintf(stderr, "usage: omp_hold MIB [BUFFERS]\n");
        return 2;
    }
    const long count = mebibytes * (1L << 20) / 8 / buffers;
    const int device = omp_get_default_device();
    uint64_t **held = malloc(buffers * sizeof *held);
    for (long b = 0; b < buffers; b++) {
        held[b] = omp_target_alloc(count * 8, device);
        if (!held[b]) {
            fprintf(stderr, "omp_hold: no memory\n");
            return 1;
        }
    }
#pragma omp target enter data map(to : held[0 : buffers])
#pragma omp target
    {
        uint64_t state = 88172645463325252u;
        for (long b = 0; b < buffers; b++)
            for (long i = 0; i < count; i++) {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                held[b][i] = state;
            }
    }
    printf("ready\n");
    fflush(stdout);
    char line[64];
    while (fgets(line, sizeof line, stdin)) {
        uint64_t sum = 0;
#pragma omp target map(tofrom : sum)
        for (long b = 0; b < buffers; b++)
            for (long i = 0; i < count; i++)
                sum = sum * 31 + held[b][i];
        printf("sum %016lx\n", sum);
        fflush(stdout);
    }
#pragma omp target exit data map(delete : held[0 : buffers])
    for (long b = 0; b < buffers; b++)
        omp_target_free(held[b], device);
    free(held);
    return 0;
}
