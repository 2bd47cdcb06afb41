/* What all programs share, those without devices too: memory, random numbers, digests. */
#ifndef EXAMPLES_RESULT_H
#define EXAMPLES_RESULT_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static inline void *allocate(size_t bytes)
{
    void *memory = NULL;
    if (posix_memalign(&memory, 64, bytes ? bytes : 64)) {
        fprintf(stderr, "no memory for %zu bytes on the host\n", bytes);
        exit(1);
    }
    return memory;
}

/* ---- random numbers: a function of seed and position, so that any thread can draw any of them -- */

#ifdef _OPENMP
#pragma omp declare target
#endif

static inline uint64_t random_bits(uint64_t seed, uint64_t position)
{
    uint64_t z = (seed << 32 ^ position) * 0x9e3779b97f4a7c15u + 0x632be59bd9b4e019u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Uniform in (0, 1): never 0, so that its logarithm is finite. */
static inline double random_unit(uint64_t seed, uint64_t position)
{
    return ((double)(random_bits(seed, position) >> 12) + 0.5) * 0x1p-52;
}

#ifdef _OPENMP
#pragma omp end declare target
#endif

/* ---- digests: equal results, bit for bit, have equal digests ------------------------------- */

#define DIGEST_START 0xcbf29ce484222325u

static uint64_t digest(uint64_t state, const void *data, size_t bytes)
{
    const unsigned char *at = data;
    for (; bytes >= 8; at += 8, bytes -= 8) {
        uint64_t word;
        memcpy(&word, at, 8);
        state = (state ^ word) * 0x100000001b3u;
        state ^= state >> 29;
    }
    for (; bytes; at++, bytes--)
        state = (state ^ *at) * 0x100000001b3u;
    return state;
}

/* The last lines of every program; its exit status. */
static int conclude(uint64_t state, int good)
{
    printf("verification %s\n", good ? "passed" : "FAILED");
    printf("digest %016llx\n", (unsigned long long)state);
    return good ? 0 : 1;
}

#endif
