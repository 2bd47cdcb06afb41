/* What BT, SP and LU share: the equations that they solve, each in its own way.
 *
 * Five coupled fields on a cube: diffusion, transport at speeds that depend on the fields, dissipation of fourth order and a
 * reaction, L(u) = f. The forcing f is that for which a polynomial is the solution, so that all three can be verified by how
 * near they come to it. The outermost two layers of points have the solution's values and are not touched. */
#ifndef KERNELS_FLOW_H
#define KERNELS_FLOW_H

#include "kernel.h"

#define FIELDS 5
#define EDGE 2
#define VISCOSITY 0.5
#define DISSIPATION 0.02
#define REACTION 0.02

struct flow {
    long n;
    /* The fields, what is left to be solved (f - L(u)) and the forcing: five numbers a point. */
    double *u, *rhs, *forcing;
    /* Speeds along the three axes and the reaction's rate, as they follow from u. */
    double *speed[3], *rate;
};

/* How transport along an axis mixes the fields, and how the reaction does. */
static const double mixing[3][FIELDS][FIELDS] = {
    {{.2, .1, 0, 0, .05}, {.1, .2, 0, 0, 0}, {0, 0, .2, 0, 0}, {0, 0, 0, .2, 0}, {.05, 0, 0, 0, .2}},
    {{.2, 0, .1, 0, .05}, {0, .2, 0, 0, 0}, {.1, 0, .2, 0, 0}, {0, 0, 0, .2, 0}, {.05, 0, 0, 0, .2}},
    {{.2, 0, 0, .1, .05}, {0, .2, 0, 0, 0}, {0, 0, .2, 0, 0}, {.1, 0, 0, .2, 0}, {.05, 0, 0, 0, .2}},
};
static const double reaction[FIELDS][FIELDS] = {
    {1, .2, 0, 0, -.2}, {-.2, 1, .2, 0, 0}, {0, -.2, 1, .2, 0}, {0, 0, -.2, 1, .2}, {.2, 0, 0, -.2, 1},
};

static inline long point(const struct flow *f, long x, long y, long z)
{
    return (z * f->n + y) * f->n + x;
}

#define FOR_INNER(f) \
    for (long z = EDGE; z < (f)->n - EDGE; z++) \
        for (long y = EDGE; y < (f)->n - EDGE; y++) \
            for (long x = EDGE; x < (f)->n - EDGE; x++)

/* Points between neighbours along an axis. */
static inline long stride(const struct flow *f, int axis)
{
    return axis == 0 ? 1 : axis == 1 ? f->n : f->n * f->n;
}

static inline double speed_of(const double *u, int axis)
{
    return 1 + 0.1 * u[axis + 1];
}

static inline double rate_of(const double *u)
{
    return REACTION * (1 + 0.1 * u[0] * u[0]);
}

static void properties(struct flow *f)
{
    const long points = f->n * f->n * f->n;
    for (long i = 0; i < points; i++) {
        for (int axis = 0; axis < 3; axis++)
            f->speed[axis][i] = speed_of(&f->u[FIELDS * i], axis);
        f->rate[i] = rate_of(&f->u[FIELDS * i]);
    }
}

/* rhs = forcing - L(u); the sum of its squares. */
static double residual(struct flow *f)
{
    double squares = 0;
    properties(f);
    FOR_INNER(f) {
        const long i = point(f, x, y, z);
        const double *u = &f->u[FIELDS * i];
        double *rhs = &f->rhs[FIELDS * i];
        for (int m = 0; m < FIELDS; m++) {
            double sum = f->forcing[FIELDS * i + m];
            for (int k = 0; k < FIELDS; k++)
                sum -= f->rate[i] * reaction[m][k] * u[k];
            for (int axis = 0; axis < 3; axis++) {
                const long s = FIELDS * stride(f, axis);
                sum += VISCOSITY * (u[m + s] - 2 * u[m] + u[m - s]);
                sum -= DISSIPATION * (u[m + 2 * s] - 4 * u[m + s] + 6 * u[m] - 4 * u[m - s] + u[m - 2 * s]);
                for (int k = 0; k < FIELDS; k++)
                    sum -= 0.5 * f->speed[axis][i] * mixing[axis][m][k] * (u[k + s] - u[k - s]);
            }
            rhs[m] = sum;
            squares += sum * sum;
        }
    }
    return squares;
}

/* The solution: a polynomial of a place from 0 to 1. */
static double solution(int m, double x, double y, double z)
{
    return 1 + (m + 1) * 0.1 * x * (1 + y) + 0.2 * y * y * z + (FIELDS - m) * 0.1 * z * z * (1 - x) * x;
}

static double distance(const struct flow *f)
{
    double squares = 0;
    const double h = 1.0 / (double)(f->n - 1);
    FOR_INNER(f)
        for (int m = 0; m < FIELDS; m++) {
            const double d = f->u[FIELDS * point(f, x, y, z) + m] - solution(m, (double)x * h, (double)y * h, (double)z * h);
            squares += d * d;
        }
    const double inner = (double)(f->n - 2 * EDGE);
    return sqrt(squares / (FIELDS * inner * inner * inner));
}

/* The equations on n points to a side, with fields to begin with that are off the solution. */
static struct flow flow_begin(long n)
{
    const size_t points = (size_t)(n * n * n);
    struct flow f = {.n = n, .u = zeros(FIELDS * points), .rhs = zeros(FIELDS * points), .forcing = zeros(FIELDS * points)};
    for (int axis = 0; axis < 3; axis++)
        f.speed[axis] = zeros(points);
    f.rate = zeros(points);
    const double h = 1.0 / (double)(n - 1);
    for (long i = 0; i < (long)points; i++)
        for (int m = 0; m < FIELDS; m++)
            f.u[FIELDS * i + m] =
                solution(m, (double)(i % n) * h, (double)(i / n % n) * h, (double)(i / n / n) * h);
    /* With no forcing yet, what is left is -L(solution). */
    residual(&f);
    for (size_t i = 0; i < FIELDS * points; i++)
        f.forcing[i] = -f.rhs[i];
    FOR_INNER(&f)
        for (int m = 0; m < FIELDS; m++)
            f.u[FIELDS * point(&f, x, y, z) + m] += 0.2 * (random_unit(5, (uint64_t)(FIELDS * point(&f, x, y, z) + m)) - 0.3);
    return f;
}

/* Adds what a step has found to the fields. */
static void advance(struct flow *f, double factor)
{
    FOR_INNER(f)
        for (int m = 0; m < FIELDS; m++)
            f->u[FIELDS * point(f, x, y, z) + m] += factor * f->rhs[FIELDS * point(f, x, y, z) + m];
}

/* The last lines: the fields have come nearer to the solution in every way. */
static int flow_end(struct flow *f, long steps, double distance_before, double left_before)
{
    const double left = sqrt(residual(f) / left_before), near = distance(f) / distance_before;
    printf("of the distance from the solution %.3e is left, of the residual %.3e\n", near, left);
    uint64_t d = digest(DIGEST_START, f->u, FIELDS * (size_t)(f->n * f->n * f->n) * sizeof *f->u);
    return conclude(d, near < 1 && (left < pow(0.9, (double)steps) || left < 0.01));
}

/* x = inverse(m) * b for both a column `b` and a whole matrix `c`; m is destroyed. Gauss, without looking for pivots: what
 * is solved here is dominated by its diagonal. */
static inline void solve_block(double m[FIELDS][FIELDS], double c[FIELDS][FIELDS], double b[FIELDS])
{
    for (int p = 0; p < FIELDS; p++) {
        const double pivot = 1 / m[p][p];
        for (int k = p + 1; k < FIELDS; k++)
            m[p][k] *= pivot;
        for (int k = 0; k < FIELDS; k++)
            c[p][k] *= pivot;
        b[p] *= pivot;
        for (int row = 0; row < FIELDS; row++) {
            if (row == p)
                continue;
            const double factor = m[row][p];
            for (int k = p + 1; k < FIELDS; k++)
                m[row][k] -= factor * m[p][k];
            for (int k = 0; k < FIELDS; k++)
                c[row][k] -= factor * c[p][k];
            b[row] -= factor * b[p];
        }
    }
}

/* Three of BT's, SP's and LU's classes are those of the benchmarks. */
static const struct size flow_sizes[] = {
    {'S', 24, 24, 24, 30},    {'W', 36, 36, 36, 30},    {'A', 64, 64, 64, 20},
    {'B', 102, 102, 102, 10}, {'C', 162, 162, 162, 10}, {0, 0, 0, 0, 0},
};

#endif
