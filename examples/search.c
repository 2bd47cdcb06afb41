/* Semantic search: for each query vector the K nearest of a collection of vectors, by their inner product.
 *
 * The collection fills the devices' memory and stays there; the host never holds all of it. Queries come in batches:
 * one target region lets every shard of the collection pick its K best, a second one merges the shards. Each
 * product is summed in one fixed order and ties go to the lower number, so that the result is the same, bit for bit,
 * on any number of devices and threads. Verified by planted neighbours and by scores recomputed on the host. */
#include "common.h"
#include <math.h>

#define DIMENSION 128
#define LANES 16
#define SHARDS 64
#define MOST 64 /* greatest K */

struct hit {
    float score;
    uint32_t number;
};

#pragma omp declare target
/* Component d of vector `number`: roughly normal, from the sum of four uniform bytes. */
static inline float component(long number, long d)
{
    uint32_t bits = (uint32_t)random_bits(7, (uint64_t)number * DIMENSION + (uint64_t)d);
    long sum = (long)(bits & 255) + (long)(bits >> 8 & 255) + (long)(bits >> 16 & 255) + (long)(bits >> 24);
    return (float)(sum - 510) / 256;
}

/* In LANES sums side by side, so that the compiler may use vector instructions without changing the order. */
static inline float product(const float *restrict a, const float *restrict b)
{
    float lane[LANES] = {0};
    for (long d = 0; d < DIMENSION; d += LANES)
        for (long l = 0; l < LANES; l++)
            lane[l] += a[d + l] * b[d + l];
    float sum = 0;
    for (long l = 0; l < LANES; l++)
        sum += lane[l];
    return sum;
}

static inline int better(struct hit a, struct hit b)
{
    return a.score > b.score || (a.score == b.score && a.number < b.number);
}

/* Puts a hit into a list that is sorted, best first, and holds at most `most`. */
static inline void keep(struct hit *list, long *length, long most, struct hit hit)
{
    if (*length == most && !better(hit, list[most - 1]))
        return;
    long at = *length < most ? (*length)++ : most - 1;
    for (; at > 0 && better(hit, list[at - 1]); at--)
        list[at] = list[at - 1];
    list[at] = hit;
}
#pragma omp end declare target

/* One device's part of the collection, and its work space; device pointers. */
struct part {
    int device;
    long first, count; /* numbers of its vectors */
    float *vectors;
    struct hit *picked; /* [shard][query][k] */
    long *lengths;      /* [shard][query] */
    struct hit *merged; /* [query][k] */
};

static void *on_device(size_t bytes, int device)
{
    void *memory = omp_target_alloc(bytes ? bytes : 1, device);
    if (!memory) {
        fprintf(stderr, "search: no memory for %zu bytes on device %d\n", bytes, device);
        exit(1);
    }
    return memory;
}

/* Makes the collection on the host, a piece at a time, and sends it to the device. */
static void load(struct part *p)
{
    const long piece = 65536;
    float *pieces = allocate((size_t)piece * DIMENSION * sizeof(float));
    for (long done = 0; done < p->count; done += piece) {
        long now = p->count - done < piece ? p->count - done : piece;
#pragma omp parallel for
        for (long i = 0; i < now; i++)
            for (long d = 0; d < DIMENSION; d++)
                pieces[i * DIMENSION + d] = component(p->first + done + i, d);
        if (omp_target_memcpy(p->vectors, pieces, (size_t)now * DIMENSION * sizeof(float), (size_t)done * DIMENSION * sizeof(float), 0,
                              p->device, omp_get_initial_device())) {
            fprintf(stderr, "search: cannot send vectors to device %d\n", p->device);
            exit(1);
        }
    }
    free(pieces);
}

/* The `most` best of this part for each query of a batch: hits[query][k]. */
static void answer(const struct part *p, const float *queries, long batch, long most, struct hit *hits)
{
    const float *vectors = p->vectors;
    struct hit *picked = p->picked, *merged = p->merged;
    long *lengths = p->lengths;
    const long first = p->first, count = p->count;
#pragma omp target data map(to : queries[0 : batch * DIMENSION]) device(p->device)
    {
#pragma omp target teams distribute parallel for is_device_ptr(vectors, picked, lengths) device(p->device)
        for (long shard = 0; shard < SHARDS; shard++) {
            long *length = lengths + shard * batch;
            for (long q = 0; q < batch; q++)
                length[q] = 0;
            long from = count * shard / SHARDS, to = count * (shard + 1) / SHARDS;
            for (long v = from; v < to; v++)
                for (long q = 0; q < batch; q++) {
                    struct hit hit = {product(vectors + v * DIMENSION, queries + q * DIMENSION), (uint32_t)(first + v)};
                    keep(picked + (shard * batch + q) * most, &length[q], most, hit);
                }
        }
#pragma omp target teams distribute parallel for is_device_ptr(picked, lengths, merged) device(p->device)
        for (long q = 0; q < batch; q++) {
            long length = 0;
            for (long shard = 0; shard < SHARDS; shard++)
                for (long k = 0; k < lengths[shard * batch + q]; k++)
                    keep(merged + q * most, &length, most, picked[(shard * batch + q) * most + k]);
            for (; length < most; length++)
                merged[q * most + length] = (struct hit){-1e30f, UINT32_MAX};
        }
    }
    if (omp_target_memcpy(hits, merged, (size_t)(batch * most) * sizeof(struct hit), 0, 0, omp_get_initial_device(), p->device)) {
        fprintf(stderr, "search: cannot fetch results from device %d\n", p->device);
        exit(1);
    }
}

/* A query is a vector of the collection with noise upon it: that vector is its nearest. */
static long planted(long query, long count)
{
    return (long)(random_bits(8, (uint64_t)query) % (uint64_t)count);
}

static void make_query(float *query, long number, long count)
{
    for (long d = 0; d < DIMENSION; d++) {
        double noise = random_unit(9, (uint64_t)(number * DIMENSION + d)) - 0.5;
        query[d] = component(planted(number, count), d) + (float)(0.25 * noise);
    }
}

int main(int argc, char **argv)
{
    long count = 256l << 10, batches = 64, batch = 64, most = 10;
    const struct setting settings[] = {
        {"vectors", &count, 1, "vectors in the collection, of 512 bytes each"},
        {"batches", &batches, 1, "batches of queries"},
        {"batch", &batch, 1, "queries in a batch"},
        {"top", &most, 1, "hits to report for each query, 64 at most"},
        {NULL, NULL, 0, NULL},
    };
    struct devices devices = parse_options(argc, argv, "Semantic search: the nearest vectors of a collection.", settings);
    if (most > MOST || count > UINT32_MAX) {
        fprintf(stderr, "search: --top must be at most %d, --vectors less than 4g\n", MOST);
        return 2;
    }
    printf("search: %ld vectors (%.0f MiB), %ld x %ld queries, %d device%s\n", count,
           (double)count * DIMENSION * sizeof(float) / (1 << 20), batches, batch, devices.count, devices.count == 1 ? "" : "s");

    struct part *parts = allocate((size_t)devices.count * sizeof *parts);
    for (int i = 0; i < devices.count; i++) {
        struct part *p = &parts[i];
        p->device = device_number(&devices, i);
        p->first = share(count, i, devices.count);
        p->count = share(count, i + 1, devices.count) - p->first;
        p->vectors = on_device((size_t)p->count * DIMENSION * sizeof(float), p->device);
        p->picked = on_device((size_t)(SHARDS * batch * most) * sizeof(struct hit), p->device);
        p->lengths = on_device((size_t)(SHARDS * batch) * sizeof(long), p->device);
        p->merged = on_device((size_t)(batch * most) * sizeof(struct hit), p->device);
        load(p);
        printf("device %d holds vectors %ld to %ld\n", p->device, p->first, p->first + p->count - 1);
    }

    float *queries = allocate((size_t)(batch * DIMENSION) * sizeof(float));
    struct hit *hits = allocate((size_t)(devices.count * batch * most) * sizeof(struct hit));
    struct hit *best = allocate((size_t)(batch * most) * sizeof(struct hit));
    uint64_t state = DIGEST_START;
    long found = 0, wrong = 0;
    for (long b = 0; b < batches; b++) {
        for (long q = 0; q < batch; q++)
            make_query(queries + q * DIMENSION, b * batch + q, count);
        /* One host thread drives each device. */
#pragma omp parallel num_threads(devices.count)
        {
            int me = omp_get_thread_num();
            answer(&parts[me], queries, batch, most, hits + me * batch * most);
        }
        for (long q = 0; q < batch; q++) {
            long length = 0;
            for (int i = 0; i < devices.count; i++)
                for (long k = 0; k < most; k++)
                    keep(best + q * most, &length, most, hits[(i * batch + q) * most + k]);
            found += best[q * most].number == (uint32_t)planted(b * batch + q, count);
            /* The reported scores are those of the reported vectors, and in order. */
            for (long k = 0; k < most && k < count; k++) {
                struct hit hit = best[q * most + k];
                float vector[DIMENSION];
                for (long d = 0; d < DIMENSION; d++)
                    vector[d] = component(hit.number, d);
                wrong += hit.score != product(vector, queries + q * DIMENSION);
                wrong += k > 0 && !better(best[q * most + k - 1], hit);
            }
        }
        state = digest(state, best, (size_t)(batch * most) * sizeof(struct hit));
        printf("batch %ld/%ld: %ld of %ld planted neighbours found\n", b + 1, batches, found, (b + 1) * batch);
    }

    /* A query of the last batch against the whole collection, on the host, unless that would take long. */
    int same = 1;
    if (count <= 1l << 20) {
        struct hit list[MOST];
        long length = 0;
        for (long v = 0; v < count; v++) {
            float vector[DIMENSION];
            for (long d = 0; d < DIMENSION; d++)
                vector[d] = component(v, d);
            keep(list, &length, most, (struct hit){product(vector, queries), (uint32_t)v});
        }
        same = memcmp(list, best, (size_t)length * sizeof(struct hit)) == 0;
    }
    printf("%ld of %ld planted neighbours found, %ld wrong scores%s\n", found, batches * batch, wrong,
           same ? "" : ", an exhaustive search DISAGREES");

    for (int i = 0; i < devices.count; i++) {
        omp_target_free(parts[i].vectors, parts[i].device);
        omp_target_free(parts[i].picked, parts[i].device);
        omp_target_free(parts[i].lengths, parts[i].device);
        omp_target_free(parts[i].merged, parts[i].device);
    }
    return conclude(state, found == batches * batch && wrong == 0 && same);
}
