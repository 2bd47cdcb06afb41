/* k-means: groups points around K centres, by Lloyd's iteration.
 *
 * The points are divided into chunks, each on one device. In every iteration two target tasks per chunk, one after
 * the other, find each point's nearest centre and add up the points of each centre; different chunks run at the same
 * time. Coordinates are whole numbers and so are the sums, which makes the result the same, bit for bit, on any
 * number of devices and threads. Verified by the inertia, which does not grow, and by groups recomputed on the host.
 */
#include "common.h"

#define D 16

#pragma omp declare target
/* The nearest of the centres and the squared distance to it; ties go to the lower number. */
static inline int nearest(const float *restrict point, const float *restrict centres, long k, float *squared)
{
    int best = 0;
    float least = 1e30f;
    for (long c = 0; c < k; c++) {
        float sum[4] = {0};
        for (long d = 0; d < D; d += 4)
            for (long l = 0; l < 4; l++) {
                float difference = point[d + l] - centres[c * D + d + l];
                sum[l] += difference * difference;
            }
        float distance = (sum[0] + sum[1]) + (sum[2] + sum[3]);
        if (distance < least) {
            least = distance;
            best = (int)c;
        }
    }
    *squared = least;
    return best;
}
#pragma omp end declare target

/* Points scattered around K hidden centres. */
static void make_points(float *points, long n, long k)
{
#pragma omp parallel for
    for (long i = 0; i < n; i++)
        for (long d = 0; d < D; d++) {
            uint64_t home = random_bits(3, (uint64_t)i) % (uint64_t)k;
            long centre = (long)(random_bits(4, home * D + (uint64_t)d) % 49152) + 8192;
            long noise = (long)(random_bits(5, (uint64_t)(i * D + d)) % 12001) - 6000;
            points[i * D + d] = (float)(centre + noise);
        }
}

int main(int argc, char **argv)
{
    long n = 2l << 20, k = 64, iterations = 24, chunks = 8;
    const struct setting settings[] = {
        {"points", &n, 1, "points, of 16 coordinates each"},
        {"clusters", &k, 1, "centres"},
        {"iterations", &iterations, 1, "iterations"},
        {"chunks", &chunks, 1, "chunks that the points are divided into"},
        {NULL, NULL, 0, NULL},
    };
    struct devices devices = parse_options(argc, argv, "k-means clustering.", settings);
    if (n < k || n < chunks) {
        fprintf(stderr, "kmeans: there must be more points than clusters and chunks\n");
        return 2;
    }
    printf("kmeans: %ld points, %ld clusters, %ld iterations, %ld chunks, %d device%s\n", n, k, iterations, chunks, devices.count,
           devices.count == 1 ? "" : "s");

    float *points = allocate((size_t)(n * D) * sizeof(float)), *centres = allocate((size_t)(k * D) * sizeof(float));
    int *group = allocate((size_t)n * sizeof(int));
    /* For each chunk: sums[k][D], counts[k] and the inertia. */
    const long record = k * D + k + 1;
    long *partial = allocate((size_t)(chunks * record) * sizeof(long));
    make_points(points, n, k);
    for (long c = 0; c < k; c++)
        memcpy(centres + c * D, points + (n / k) * c * D, D * sizeof(float));

    for (long c = 0; c < chunks; c++) {
        long from = n * c / chunks, size = n * (c + 1) / chunks - from;
        int device = device_number(&devices, (int)(c % devices.count));
#pragma omp target enter data map(to : points[from * D : size * D]) map(alloc : group[from : size], partial[c * record : record]) device(device)
    }
    for (int i = 0; i < devices.count; i++) {
        int device = device_number(&devices, i);
#pragma omp target enter data map(to : centres[0 : k * D]) device(device)
    }

    int good = 1;
    long inertia = 0, before = INT64_MAX / 2;
    for (long iteration = 1; iteration <= iterations; iteration++) {
        for (int i = 0; i < devices.count; i++) {
            int device = device_number(&devices, i);
#pragma omp target update to(centres[0 : k * D]) device(device)
        }
#pragma omp parallel master
        for (long c = 0; c < chunks; c++) {
            const long from = n * c / chunks, size = n * (c + 1) / chunks - from;
            const int device = device_number(&devices, (int)(c % devices.count));
            float *my_points = points + from * D;
            int *my_group = group + from;
            long *mine = partial + c * record;
            /* The sums of a chunk wait for its groups, and the copy waits for its sums. */
#pragma omp target nowait depend(out : my_group[0]) device(device) map(to : my_points[0 : size * D], centres[0 : k * D]) map(from : my_group[0 : size])
            for (long i = 0; i < size; i++) {
                float squared;
                my_group[i] = nearest(my_points + i * D, centres, k, &squared);
            }
#pragma omp target nowait depend(in : my_group[0]) depend(out : mine[0]) device(device) map(to : my_points[0 : size * D], centres[0 : k * D], my_group[0 : size]) map(from : mine[0 : record])
            {
                for (long s = 0; s < record; s++)
                    mine[s] = 0;
                for (long i = 0; i < size; i++) {
                    long *sums = mine + my_group[i] * D;
                    float squared = 0;
                    for (long d = 0; d < D; d++) {
                        float difference = my_points[i * D + d] - centres[my_group[i] * D + d];
                        squared += difference * difference;
                        sums[d] += (long)my_points[i * D + d];
                    }
                    mine[k * D + my_group[i]]++;
                    mine[k * D + k] += (long)squared;
                }
            }
#pragma omp target update from(mine[0 : record]) device(device) nowait depend(in : mine[0])
        }

        inertia = 0;
        for (long c = 1; c < chunks; c++)
            for (long s = 0; s < record; s++)
                partial[s] += partial[c * record + s];
        inertia = partial[k * D + k];
        if (iteration < iterations)
            for (long c = 0; c < k; c++)
                for (long d = 0; d < D && partial[k * D + c] > 0; d++)
                    centres[c * D + d] = (float)((double)partial[c * D + d] / (double)partial[k * D + c]);
        /* Rounding of single distances may add up to a little. */
        good &= inertia <= before + before / 100000;
        before = inertia;
        printf("iteration %ld/%ld inertia %ld\n", iteration, iterations, inertia);
    }

    for (long c = 0; c < chunks; c++) {
        long from = n * c / chunks, size = n * (c + 1) / chunks - from;
        int device = device_number(&devices, (int)(c % devices.count));
#pragma omp target exit data map(from : group[from : size]) map(delete : points[from * D : size * D], partial[c * record : record]) device(device)
    }
    for (int i = 0; i < devices.count; i++) {
        int device = device_number(&devices, i);
#pragma omp target exit data map(delete : centres[0 : k * D]) device(device)
    }

    /* The centres are still those that the last groups were found with. */
    long counts = 0, differ = 0;
    for (long c = 0; c < k; c++)
        counts += partial[k * D + c];
    for (long s = 0; s < 20000; s++) {
        long i = (long)(random_bits(6, (uint64_t)s) % (uint64_t)n);
        float squared;
        differ += group[i] != nearest(points + i * D, centres, k, &squared);
    }
    good &= counts == n && differ == 0;
    printf("%ld points counted, %ld of 20000 groups differ from the host's\n", counts, differ);

    uint64_t state = digest(DIGEST_START, group, (size_t)n * sizeof(int));
    state = digest(state, centres, (size_t)(k * D) * sizeof(float));
    return conclude(digest(state, &inertia, sizeof inertia), good);
}
