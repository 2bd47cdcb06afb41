/* Ways in which a target region fails. usage: omp_failure WAY DEVICE
 * Whatever the way, the program must not get past the region. */
#include <omp.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#pragma omp declare target
static long deeper(volatile long *frame) {
    volatile long here[512];
    memcpy((void *)here, (void *)frame, sizeof here);
    here[0]++;
    return deeper(here) + here[0];
}
#pragma omp end declare target

static int device;

static void segfault(void) {
    #pragma omp target device(device)
    *(volatile int *)8 = 1;
}

static void aborts(void) {
    #pragma omp target device(device)
    abort();
}

static void overflow(void) {
    long sum = 0;
    #pragma omp target device(device) map(from : sum)
    {
        volatile long frame[512] = {0};
        sum = deeper(frame);
    }
    printf("%ld\n", sum);
}

static void out_of_memory(void) {
    #pragma omp target device(device)
    for (;;) {
        volatile char *volatile more = malloc(16 << 20);
        for (long i = 0; i < 16 << 20; i += 4096) more[i] = 1;
    }
}

static void leaves(void) {
    #pragma omp target device(device)
    exit(0);
}

static void within_team(void) {
    int hit = 0;
    #pragma omp target teams distribute parallel for device(device) map(tofrom : hit)
    for (int i = 0; i < 64; i++)
        if (i == 33) abort();
}

static void without_waiting(void) {
    int x = 0;
    #pragma omp target device(device) map(tofrom : x) nowait depend(out : x)
    abort();
    #pragma omp target device(device) map(tofrom : x) nowait depend(inout : x)
    x++;
    #pragma omp taskwait
}

static void *busy(void *unused) {
    for (;;) {
        #pragma omp target device(device)
        {
            volatile long i = 0;
            while (i < 100000) i++;
        }
    }
    return unused;
}

static void among_others(void) {
    pthread_t threads[3];
    for (int i = 0; i < 3; i++) pthread_create(&threads[i], NULL, busy, NULL);
    #pragma omp target device(device)
    abort();
    for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*fail)(void);
    } ways[] = {{"segfault", segfault},
                {"aborts", aborts},
                {"overflow", overflow},
                {"out_of_memory", out_of_memory},
                {"leaves", leaves},
                {"within_team", within_team},
                {"without_waiting", without_waiting},
                {"among_others", among_others}};
    if (argc < 3) return 2;
    device = atoi(argv[2]);
    for (unsigned i = 0; i < sizeof ways / sizeof *ways; i++)
        if (!strcmp(ways[i].name, argv[1])) ways[i].fail();
    printf("went on\n");
    return 0;
}
