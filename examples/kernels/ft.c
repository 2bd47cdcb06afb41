/* FT: heat spreads in a box, solved by Fourier transforms in three dimensions.
 *
 * Each step multiplies the transformed field by factors that are never written, copies it and transforms the copy back, with
 * strides of one, x and x*y points: both fields, most of the memory, are written throughout. Verified by transforming the last
 * result forth again. All three numbers are powers of two. */
#include "kernel.h"

#define SEED 17u
#define DIFFUSION 1e-4

struct number {
    double re, im;
};

/* Roots of unity for the longest side. */
static struct number *root;
static long roots;

/* A transform of n numbers in place; `sign` is -1 forth and 1 back, which is not divided by n. */
static void transform(struct number *a, long n, int sign)
{
    for (long i = 1, j = 0; i < n; i++) {
        long bit = n >> 1;
        for (; j & bit; bit >>= 1)
            j ^= bit;
        j ^= bit;
        if (i < j) {
            const struct number other = a[i];
            a[i] = a[j];
            a[j] = other;
        }
    }
    for (long length = 2; length <= n; length <<= 1)
        for (long i = 0; i < n; i += length)
            for (long k = 0; k < length / 2; k++) {
                const struct number w = root[k * (roots / length)], u = a[i + k], v = a[i + k + length / 2];
                const double re = v.re * w.re - sign * v.im * w.im, im = v.im * w.re + sign * v.re * w.im;
                a[i + k] = (struct number){u.re + re, u.im + im};
                a[i + k + length / 2] = (struct number){u.re - re, u.im - im};
            }
}

/* All lines along one side: `count` of them lie `next` apart in each of `outer` groups, their points `stride`. */
static void transform_side(struct number *field, long n, long stride, long count, long next, long outer, long group, int sign)
{
    struct number *line = allocate((size_t)n * sizeof *line);
    for (long o = 0; o < outer; o++)
        for (long c = 0; c < count; c++) {
            struct number *from = field + o * group + c * next;
            for (long i = 0; i < n; i++)
                line[i] = from[i * stride];
            transform(line, n, sign);
            for (long i = 0; i < n; i++)
                from[i * stride] = line[i];
        }
    free(line);
}

static void transform_box(struct number *field, const struct size *s, int sign)
{
    transform_side(field, s->x, 1, s->y, s->x, s->z, s->x * s->y, sign);
    transform_side(field, s->y, s->x, s->x, 1, s->z, s->x * s->y, sign);
    transform_side(field, s->z, s->x * s->y, s->x * s->y, 1, 1, 0, sign);
}

static double wave(long i, long n)
{
    const double k = (double)(i < n / 2 ? i : i - n);
    return k * k;
}

int main(int argc, char **argv)
{
    static const struct size sizes[] = {
        {'S', 64, 64, 32, 20},    {'W', 128, 64, 64, 16},   {'A', 256, 128, 64, 12},
        {'B', 256, 256, 128, 10}, {'C', 512, 256, 128, 10}, {0, 0, 0, 0, 0},
    };
    const struct size size = kernel_options(argc, argv, "Heat equation by Fourier transforms.", sizes);
    const long n = size.x * size.y * size.z;
    roots = size.x > size.y ? size.x : size.y;
    roots = roots > size.z ? roots : size.z;
    root = allocate((size_t)(roots / 2) * sizeof *root);
    for (long k = 0; k < roots / 2; k++)
        root[k] = (struct number){cos(2 * M_PI * (double)k / (double)roots), sin(2 * M_PI * (double)k / (double)roots)};

    struct number *waves = allocate((size_t)n * sizeof *waves), *field = allocate((size_t)n * sizeof *field);
    double *factor = allocate((size_t)n * sizeof *factor);
    for (long i = 0; i < n; i++) {
        const long x = i % size.x, y = i / size.x % size.y, z = i / size.x / size.y;
        factor[i] = exp(-4 * M_PI * M_PI * DIFFUSION * (wave(x, size.x) + wave(y, size.y) + wave(z, size.z)));
        waves[i] = (struct number){random_unit(SEED, (uint64_t)i), random_unit(SEED + 1, (uint64_t)i)};
    }
    transform_box(waves, &size, -1);

    for (long step = 0; step < size.steps; step++) {
        for (long i = 0; i < n; i++) {
            waves[i].re *= factor[i];
            waves[i].im *= factor[i];
            field[i] = waves[i];
        }
        transform_box(field, &size, 1);
        double sum = 0;
        for (long j = 1; j <= 1024; j++)
            sum += field[(j * 5 % size.x) + (j * 3 % size.y) * size.x + (j % size.z) * size.x * size.y].re / (double)n;
        step_done(step + 1, size.steps, "checksum", sum);
    }

    uint64_t d = digest(DIGEST_START, field, (size_t)n * sizeof *field);
    transform_box(field, &size, -1);
    double error = 0, norm = 0;
    for (long i = 0; i < n; i++) {
        const double re = field[i].re / (double)n - waves[i].re, im = field[i].im / (double)n - waves[i].im;
        error += re * re + im * im;
        norm += waves[i].re * waves[i].re + waves[i].im * waves[i].im;
    }
    error = sqrt(error / norm);
    printf("relative difference after transforming back and forth %.3e\n", error);
    return conclude(d, error < 1e-12);
}
