/* CG: the smallest eigenvalue of a large sparse matrix by inverse iteration, each step of which is a solution by conjugate
 * gradients.
 *
 * The matrix, nearly all of the memory, is never written once it is there; a few vectors are, in each iteration. Its columns
 * are scattered, so that memory is read at random. Verified by the residual of the last solution. x is the number of rows, y
 * the number of entries of each beside the diagonal. */
#include "kernel.h"

#define INNER 12
#define SEED 314u

struct matrix {
    long rows, width;
    double *diagonal, *value;
    int32_t *column;
};

/* Symmetric by its making: entry (i, j) depends on the pair only, and its columns lie at fixed distances to both sides. */
static struct matrix make(long rows, long width)
{
    struct matrix m = {.rows = rows, .width = width};
    m.diagonal = allocate((size_t)rows * sizeof *m.diagonal);
    m.value = allocate((size_t)(rows * width) * sizeof *m.value);
    m.column = allocate((size_t)(rows * width) * sizeof *m.column);
    for (long i = 0; i < rows; i++) {
        double sum = 0;
        for (long k = 0; k < width; k++) {
            const long distance = (long)(random_bits(SEED, (uint64_t)(k / 2)) % (uint64_t)(rows / 2)) + 1;
            const long j = (k % 2 ? i + distance : i - distance + rows) % rows;
            const long low = i < j ? i : j, high = i < j ? j : i;
            const double value = random_unit(SEED + 1, (uint64_t)(low * rows + high)) - 0.5;
            m.value[i * width + k] = value;
            m.column[i * width + k] = (int32_t)j;
            sum += fabs(value);
        }
        /* Dominant, so that it is positive definite. */
        m.diagonal[i] = sum + 0.1 + random_unit(SEED + 2, (uint64_t)i);
    }
    return m;
}

static void multiply(const struct matrix *m, const double *x, double *y)
{
    for (long i = 0; i < m->rows; i++) {
        double sum = m->diagonal[i] * x[i];
        for (long k = i * m->width; k < (i + 1) * m->width; k++)
            sum += m->value[k] * x[m->column[k]];
        y[i] = sum;
    }
}

static double dot(const double *a, const double *b, long n)
{
    double sum = 0;
    for (long i = 0; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

int main(int argc, char **argv)
{
    static const struct size sizes[] = {
        {'S', 16000, 32, 1, 40},   {'W', 48000, 40, 1, 30},   {'A', 128000, 48, 1, 20},
        {'B', 256000, 96, 1, 16}, {'C', 512000, 128, 1, 12}, {0, 0, 0, 0, 0},
    };
    const struct size size = kernel_options(argc, argv, "Smallest eigenvalue of a sparse matrix.", sizes);
    const struct matrix m = make(size.x, size.y);
    const long n = size.x;
    double *x = zeros((size_t)n), *z = zeros((size_t)n), *p = zeros((size_t)n), *q = zeros((size_t)n), *r = zeros((size_t)n);
    for (long i = 0; i < n; i++)
        x[i] = 1;
    double residual = 1, eigenvalue = 0;

    for (long step = 0; step < size.steps; step++) {
        const double start = dot(x, x, n);
        double rho = start;
        for (long i = 0; i < n; i++) {
            z[i] = 0;
            p[i] = r[i] = x[i];
        }
        for (int inner = 0; inner < INNER; inner++) {
            multiply(&m, p, q);
            const double alpha = rho / dot(p, q, n);
            for (long i = 0; i < n; i++) {
                z[i] += alpha * p[i];
                r[i] -= alpha * q[i];
            }
            const double next = dot(r, r, n), beta = next / rho;
            rho = next;
            for (long i = 0; i < n; i++)
                p[i] = r[i] + beta * p[i];
        }
        residual = sqrt(rho / start);
        eigenvalue = start / dot(x, z, n);
        const double norm = 1 / sqrt(dot(z, z, n));
        for (long i = 0; i < n; i++)
            x[i] = norm * z[i];
        step_done(step + 1, size.steps, "eigenvalue", eigenvalue);
    }

    printf("relative residual of the last solution %.3e\n", residual);
    uint64_t d = digest(DIGEST_START, x, (size_t)n * sizeof *x);
    d = digest(d, &eigenvalue, sizeof eigenvalue);
    return conclude(d, residual < 0.05 && eigenvalue > 0);
}
