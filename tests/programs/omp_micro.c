/* Small costs of an OpenMP device, as one JSON object on standard output:
 *   empty_region_ns, map_int_ns    median time of an empty target region, of one with map(tofrom: int)
 *   to_card_gbs, from_card_gbs, memcpy_gbs    medians of transfers of a large block and, in turn with them,
 *                                  of memcpy between two blocks of the same size in the host process; 10^9 bytes/s
 *   one_buffer_ms, small_buffers_ms    medians of mapping a block of 64 MiB to the device and giving it back, in one piece and,
 *                                  in turn with that, in 10,000
 *   kernel_us                      median time of a teams region over 2^16 elements (what short steps of a program cost)
 * usage: omp_micro [REGIONS [MEBIBYTES]] */
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define TURNS 9

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static int ascending(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, size_t count) {
    qsort(values, count, sizeof *values, ascending);
    return values[count / 2];
}

int main(int argc, char **argv) {
    const size_t regions = argc > 1 ? strtoul(argv[1], NULL, 10) : 20000;
    const size_t bytes = (argc > 2 ? strtoul(argv[2], NULL, 10) : 64) << 20;
    if (omp_get_num_devices() == 0 || regions == 0 || bytes == 0) {
        fprintf(stderr, "omp_micro: no device, or a count of 0\n");
        return 1;
    }
    const int device = omp_get_default_device(), host = omp_get_initial_device();
    double *times = malloc(regions * sizeof *times);
    int x = 0;
    #pragma omp target map(tofrom : x)
    x = 0;

    for (size_t i = 0; i < regions; i++) {
        double start = now();
        #pragma omp target
        {}
        times[i] = now() - start;
    }
    const double empty = median(times, regions);

    for (size_t i = 0; i < regions; i++) {
        double start = now();
        #pragma omp target map(tofrom : x)
        x++;
        times[i] = now() - start;
    }
    const double map = median(times, regions);

    enum { ELEMENTS = 1 << 16 };
    float *array = malloc(ELEMENTS * sizeof *array);
    for (int i = 0; i < ELEMENTS; i++) array[i] = 1;
    const size_t kernels = regions / 10 + 1;
    #pragma omp target data map(tofrom : array[0 : ELEMENTS])
    for (size_t k = 0; k < kernels; k++) {
        double start = now();
        #pragma omp target teams distribute parallel for
        for (int i = 0; i < ELEMENTS; i++) array[i] = array[i] * 0.5f + 1;
        times[k] = now() - start;
    }
    const double kernel = median(times, kernels);

    char *here = malloc(bytes), *copy = malloc(bytes), *there = omp_target_alloc(bytes, device);
    if (!here || !copy || !there) {
        fprintf(stderr, "omp_micro: no memory\n");
        return 1;
    }
    memset(here, 1, bytes);
    memset(copy, 2, bytes);
    int failed = omp_target_memcpy(there, here, bytes, 0, 0, device, host);
    double to[TURNS], from[TURNS], plain[TURNS];
    for (int turn = 0; turn < TURNS; turn++) {
        here[turn] = (char)turn;
        double start = now();
        memcpy(copy, here, bytes);
        plain[turn] = (double)bytes / (now() - start);
        start = now();
        failed |= omp_target_memcpy(there, here, bytes, 0, 0, device, host);
        to[turn] = (double)bytes / (now() - start);
        start = now();
        failed |= omp_target_memcpy(copy, there, bytes, 0, 0, host, device);
        from[turn] = (double)bytes / (now() - start);
    }
    failed |= memcmp(here, copy, bytes) != 0 || x != (int)regions;
    omp_target_free(there, device);

    enum { PIECES = 10000, PIECE = (64 << 20) / PIECES };
    char *block = malloc((size_t)PIECES * PIECE);
    if (!block) return 1;
    memset(block, 3, (size_t)PIECES * PIECE);
    double one[TURNS], small[TURNS];
    for (int turn = 0; turn < TURNS; turn++) {
        double start = now();
        #pragma omp target enter data map(to : block[0 : PIECES * PIECE])
        #pragma omp target exit data map(delete : block[0 : PIECES * PIECE])
        one[turn] = now() - start;
        start = now();
        for (int i = 0; i < PIECES; i++) {
            #pragma omp target enter data map(to : block[i * PIECE : PIECE])
        }
        for (int i = 0; i < PIECES; i++) {
            #pragma omp target exit data map(delete : block[i * PIECE : PIECE])
        }
        small[turn] = now() - start;
    }

    printf("{\"empty_region_ns\": %.0f, \"map_int_ns\": %.0f, \"kernel_us\": %.2f, "
           "\"one_buffer_ms\": %.2f, \"small_buffers_ms\": %.2f, "
           "\"to_card_gbs\": %.2f, \"from_card_gbs\": %.2f, \"memcpy_gbs\": %.2f}\n",
           empty, map, kernel / 1000, median(one, TURNS) / 1e6, median(small, TURNS) / 1e6, median(to, TURNS), median(from, TURNS), median(plain, TURNS));
    if (failed) fprintf(stderr, "omp_micro: wrong data\n");
    return failed;
}
