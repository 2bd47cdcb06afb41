/* SGEMM: C = A x B + C in single precision, several times over, with all matrices kept on the devices.
 *
 * The rows of A and C are shared among the devices; every device holds the whole of B. A device does its share of
 * one product in one long target region. Each element sums its products in one fixed order, so that the result is
 * the same, bit for bit, on any number of devices and threads. Verified by elements recomputed on the host. */
#include "common.h"
#include <math.h>

/* Sizes of the blocks that stay in a core's caches. */
#define ROWS 4
#define INNER 128
#define COLUMNS 512

#pragma omp declare target
static inline long least(long a, long b)
{
    return a < b ? a : b;
}

/* Adds a block of A (rows x inner) times a block of B (inner x columns) to a block of C. */
static inline void multiply_block(const float *restrict a, const float *restrict b, float *restrict c, long rows, long inner, long columns,
                                  long stride_a, long stride_b)
{
    long i = 0;
    for (; i + ROWS <= rows; i += ROWS) {
        float *c0 = c + i * stride_b, *c1 = c0 + stride_b, *c2 = c1 + stride_b, *c3 = c2 + stride_b;
        for (long k = 0; k < inner; k++) {
            const float a0 = a[i * stride_a + k], a1 = a[(i + 1) * stride_a + k];
            const float a2 = a[(i + 2) * stride_a + k], a3 = a[(i + 3) * stride_a + k];
            const float *row = b + k * stride_b;
#pragma omp simd
            for (long j = 0; j < columns; j++) {
                c0[j] += a0 * row[j];
                c1[j] += a1 * row[j];
                c2[j] += a2 * row[j];
                c3[j] += a3 * row[j];
            }
        }
    }
    for (; i < rows; i++)
        for (long k = 0; k < inner; k++)
#pragma omp simd
            for (long j = 0; j < columns; j++)
                c[i * stride_b + j] += a[i * stride_a + k] * b[k * stride_b + j];
}
#pragma omp end declare target

/* Elements are small multiples of 1/16, different in every place. */
static void fill(float *matrix, long count, uint64_t seed)
{
#pragma omp parallel for
    for (long i = 0; i < count; i++)
        matrix[i] = (float)((long)(random_bits(seed, (uint64_t)i) % 33) - 16) / 16;
}

/* The same sum as on the device, in the same order. */
static float element(const float *a, const float *b, long row, long column, long k, long n, long rounds)
{
    float sum = 0;
    for (long round = 0; round < rounds; round++)
        for (long i = 0; i < k; i++)
            sum += a[row * k + i] * b[i * n + column];
    return sum;
}

int main(int argc, char **argv)
{
    long m = 3072, n = 3072, k = 3072, rounds = 8;
    const struct setting settings[] = {
        {"rows", &m, 1, "rows of A and C"},
        {"columns", &n, 1, "columns of B and C"},
        {"inner", &k, 1, "columns of A, rows of B"},
        {"rounds", &rounds, 1, "times that the product is added to C"},
        {NULL, NULL, 0, NULL},
    };
    struct devices devices = parse_options(argc, argv, "Matrix product in single precision: C = A x B + C.", settings);
    double megabytes = (double)(m * k + k * n * devices.count + m * n) * sizeof(float) / (1 << 20);
    printf("sgemm: %ld x %ld x %ld, %ld rounds, %.0f MiB on %d device%s\n", m, n, k, rounds, megabytes, devices.count,
           devices.count == 1 ? "" : "s");

    float *a = allocate((size_t)(m * k) * sizeof(float));
    float *b = allocate((size_t)(k * n) * sizeof(float));
    float *c = allocate((size_t)(m * n) * sizeof(float));
    fill(a, m * k, 1);
    fill(b, k * n, 2);
    memset(c, 0, (size_t)(m * n) * sizeof(float));

    /* One host thread drives each device. */
#pragma omp parallel num_threads(devices.count)
    {
        const int me = omp_get_thread_num(), device = device_number(&devices, me);
        const long from = share(m, me, devices.count), rows = share(m, me + 1, devices.count) - from;
        float *my_a = a + from * k, *my_c = c + from * n;

#pragma omp target data map(to : my_a[0 : rows * k], b[0 : k * n]) map(tofrom : my_c[0 : rows * n]) device(device)
        for (long round = 1; round <= rounds; round++) {
            /* Strips of C; a strip's blocks of B come one after the other, in ascending order of k. */
#pragma omp target teams distribute parallel for collapse(2) device(device)
            for (long strip = 0; strip < (rows + 63) / 64; strip++)
                for (long block = 0; block < (n + COLUMNS - 1) / COLUMNS; block++) {
                    long i = strip * 64, j = block * COLUMNS;
                    for (long l = 0; l < k; l += INNER)
                        multiply_block(my_a + i * k + l, b + l * n + j, my_c + i * n + j, least(64, rows - i), least(INNER, k - l),
                                       least(COLUMNS, n - j), k, n);
                }
            if (me == 0)
                printf("round %ld/%ld\n", round, rounds);
        }
    }

    double worst = 0;
    for (long s = 0; s < 64; s++) {
        long row = (long)(random_bits(3, (uint64_t)s) % (uint64_t)m), column = (long)(random_bits(4, (uint64_t)s) % (uint64_t)n);
        double expected = element(a, b, row, column, k, n, rounds), size = fabs(expected) > 1 ? fabs(expected) : 1;
        worst = fmax(worst, fabs(expected - c[row * n + column]) / size);
    }
    printf("64 elements differ from the host's by %.2e at most\n", worst);
    return conclude(digest(DIGEST_START, c, (size_t)(m * n) * sizeof(float)), worst < 1e-4);
}
