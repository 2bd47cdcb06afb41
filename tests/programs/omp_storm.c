/* Everything that travels between a host process and its cards, from many threads at once: commands, run functions with and
 * without nowait, dependences over devices, transfers in both directions that take several pieces, copies between devices,
 * buffers that come and go. Each message has an effect that counts exactly once and in order, and all of it is checked.
 *
 * usage: omp_storm [rounds]. Last line: "digest <hexadecimal>", the same for every run of so many rounds. */
#include <omp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WORKERS 4
#define MOST_DEVICES 16
#define SMALL 512
#define LARGE (5l << 20) /* of 8 bytes each: three pieces of a transfer */
#define CHAIN 6

static int devices, rounds = 40;
static atomic_int failures;
static atomic_long launched[MOST_DEVICES];

#pragma omp declare target
long executed; /* on each device for itself */
static uint64_t mix(uint64_t x, uint64_t by) { return (x ^ by) * 0x9e3779b97f4a7c15u + by; }
#pragma omp end declare target

static void expect(int ok, const char *what, int worker, int round) {
    if (ok) return;
    failures++;
    fprintf(stderr, "worker %d, round %d: %s\n", worker, round, what);
}

/* A function that is executed once and in order, or the state shows it. */
static void step(int device, uint64_t *state, uint64_t by, int worker, int round) {
    uint64_t before = *state, seen = 0;
    launched[device]++;
    #pragma omp target device(device) map(tofrom : seen) map(alloc : state[0 : 1])
    {
        #pragma omp atomic
        executed++;
        seen = state[0];
        state[0] = mix(state[0], by);
    }
    expect(seen == before, "a function was lost, doubled or out of order", worker, round);
    *state = mix(before, by);
}

/* The same in parallel on the card: each element counts. */
static uint64_t spread(int device, uint64_t *data, int worker, int round) {
    uint64_t sum = 0, expected = 0;
    launched[device]++;
    for (int i = 0; i < SMALL; i++) expected += data[i] += (uint64_t)i;
    #pragma omp target teams distribute parallel for num_teams(2) device(device) \
        map(alloc : data[0 : SMALL]) reduction(+ : sum)
    for (int i = 0; i < SMALL; i++) {
        if (i == 0) {
            #pragma omp atomic
            executed++;
        }
        data[i] += (uint64_t)i;
        sum += data[i];
    }
    expect(sum == expected, "elements on the card differ", worker, round);
    return sum;
}

/* From the first thread only: libomp 16 itself fails if several threads that it did not make have tasks with dependences.
 * Functions without waiting, in the order of their dependences, on one device after the other. */
static uint64_t chain(int worker, int round) {
    uint64_t value = (uint64_t)worker + 1, expected = value;
    for (int i = 0; i < CHAIN; i++) {
        int device = (worker + i) % devices;
        launched[device]++;
        expected = mix(expected, (uint64_t)i);
        #pragma omp target device(device) map(tofrom : value) depend(inout : value) nowait firstprivate(i)
        {
            #pragma omp atomic
            executed++;
            value = mix(value, (uint64_t)i);
        }
    }
    #pragma omp taskwait
    expect(value == expected, "dependent functions were out of order", worker, round);
    return value;
}

/* There and back, in pieces, and over another device if there is one. */
static uint64_t carry(uint64_t *large, int worker, int round) {
    int from = worker % devices, to = (worker + 1) % devices, host = omp_get_initial_device();
    long first = (long)round * 7919 % LARGE;
    for (long i = 0; i < LARGE; i += 509) large[i] = mix((uint64_t)i, (uint64_t)(worker + round));
    large[first] = 1, large[LARGE - 1] = 2;
    uint64_t *one = omp_target_alloc(LARGE * 8, from), *two = omp_target_alloc(LARGE * 8, to);
    expect(one && two, "no memory on a card", worker, round);
    if (!one || !two) return 0;
    int failed = omp_target_memcpy(one, large, LARGE * 8, 0, 0, from, host);
    failed |= omp_target_memcpy(two, one, LARGE * 8, 0, 0, to, from);
    memset(large, 0, LARGE * 8);
    failed |= omp_target_memcpy(large, two, LARGE * 8, 0, 0, host, to);
    omp_target_free(one, from);
    omp_target_free(two, to);
    int ok = !failed && large[first] == 1 && large[LARGE - 1] == 2;
    for (long i = 0; i < LARGE && ok; i += 509)
        ok = i == first || i == LARGE - 1 || large[i] == mix((uint64_t)i, (uint64_t)(worker + round));
    expect(ok, "what was carried came back changed", worker, round);
    return large[509];
}

static void *work(void *argument) {
    int worker = (int)(intptr_t)argument, device = worker % devices;
    uint64_t state[1] = {(uint64_t)worker}, data[SMALL] = {0}, digest = (uint64_t)worker;
    uint64_t *large = malloc(LARGE * 8);
    #pragma omp target enter data map(to : state, data) device(device)
    for (int round = 0; round < rounds; round++) {
        for (int i = 0; i < 60; i++) step(device, state, (uint64_t)(round * 60 + i), worker, round);
        digest = mix(digest, spread(device, data, worker, round));
        if (round % 4 == worker) digest = mix(digest, carry(large, worker, round));
        uint64_t brief[64];
        for (int i = 0; i < 64; i++) brief[i] = (uint64_t)(round + i);
        #pragma omp target data map(tofrom : brief) device(device)
        {
            step(device, state, 1, worker, round);
            #pragma omp target update from(brief[32 : 8]) device(device)
        }
        expect(brief[35] == (uint64_t)(round + 35), "an update brought something else", worker, round);
        if (worker == 0) printf("round %d\n", round), fflush(stdout);
    }
    digest = mix(digest, state[0]);
    #pragma omp target exit data map(from : state, data) device(device)
    digest = mix(digest, state[0]);
    for (int i = 0; i < SMALL; i++) digest = mix(digest, data[i]);
    free(large);
    return (void *)(uintptr_t)digest;
}

int main(int argc, char **argv) {
    if (argc > 1) rounds = atoi(argv[1]);
    devices = omp_get_num_devices();
    if (devices == 0 || devices > MOST_DEVICES) return 2;
    pthread_t threads[WORKERS];
    for (intptr_t i = 0; i < WORKERS; i++)
        if (pthread_create(&threads[i], NULL, work, (void *)i)) return 2;
    uint64_t digest = 0;
    for (int round = 0; round < rounds * 4; round++) digest = mix(digest, chain(WORKERS, round));
    for (int i = 0; i < WORKERS; i++) {
        void *result;
        pthread_join(threads[i], &result);
        digest = mix(digest, (uintptr_t)result);
    }
    for (int device = 0; device < devices; device++) {
        long count = -1;
        #pragma omp target device(device) map(from : count)
        count = executed;
        if (count != launched[device]) {
            failures++;
            fprintf(stderr, "device %d executed %ld of %ld functions\n", device, count, launched[device]);
        }
    }
    if (failures) return 1;
    printf("digest %016lx\n", (unsigned long)digest);
    return 0;
}
