/* MG: Poisson's equation in a periodic box by multigrid V-cycles.
 *
 * A cycle goes from the finest grid to the coarsest and back: solution and residual are written on all of them, the right-hand
 * side never. Verified by the residual, which each cycle makes several times smaller. All three numbers are powers of two. */
#include "kernel.h"

#define SEED 1618u
#define CHARGES 10
#define SMOOTHING 2
#define LEVELS 32

struct grid {
    long x, y, z;
    double *u, *r;
};

static inline long at(const struct grid *g, long x, long y, long z)
{
    return (z * g->y + y) * g->x + x;
}

/* The sum of the six neighbours of a point. */
static inline double around(const struct grid *g, const double *u, long x, long y, long z)
{
    return u[at(g, (x + 1) & (g->x - 1), y, z)] + u[at(g, (x - 1) & (g->x - 1), y, z)] + u[at(g, x, (y + 1) & (g->y - 1), z)] +
           u[at(g, x, (y - 1) & (g->y - 1), z)] + u[at(g, x, y, (z + 1) & (g->z - 1))] + u[at(g, x, y, (z - 1) & (g->z - 1))];
}

#define FOR_POINTS(g) \
    for (long z = 0; z < (g)->z; z++) \
        for (long y = 0; y < (g)->y; y++) \
            for (long x = 0; x < (g)->x; x++)

/* Red and black points in turn; -laplace(u) = f, the distance of points being 1 on the finest grid. */
static void smooth(const struct grid *g, const double *f, double square)
{
    for (int pass = 0; pass < 2 * SMOOTHING; pass++)
        FOR_POINTS(g)
            if (((x + y + z) & 1) == (pass & 1))
                g->u[at(g, x, y, z)] = (around(g, g->u, x, y, z) + square * f[at(g, x, y, z)]) / 6;
}

static void residual(const struct grid *g, const double *f, double square)
{
    FOR_POINTS(g) {
        const long i = at(g, x, y, z);
        g->r[i] = f[i] + (around(g, g->u, x, y, z) - 6 * g->u[i]) / square;
    }
}

/* Means of eight points; and back, as a constant on the eight. */
static void restrict_to(const struct grid *fine, const struct grid *coarse, double *f)
{
    FOR_POINTS(coarse) {
        double sum = 0;
        for (int k = 0; k < 8; k++)
            sum += fine->r[at(fine, 2 * x + (k & 1), 2 * y + (k >> 1 & 1), 2 * z + (k >> 2))];
        f[at(coarse, x, y, z)] = sum / 8;
    }
}

static void correct(const struct grid *fine, const struct grid *coarse)
{
    FOR_POINTS(fine)
        fine->u[at(fine, x, y, z)] += coarse->u[at(coarse, x / 2, y / 2, z / 2)];
}

static double norm(const double *values, long n)
{
    double sum = 0;
    for (long i = 0; i < n; i++)
        sum += values[i] * values[i];
    return sqrt(sum / (double)n);
}

int main(int argc, char **argv)
{
    static const struct size sizes[] = {
        {'S', 64, 32, 32, 30},    {'W', 64, 64, 64, 24},    {'A', 128, 128, 128, 16},
        {'B', 256, 256, 256, 10}, {'C', 512, 256, 256, 10}, {0, 0, 0, 0, 0},
    };
    const struct size size = kernel_options(argc, argv, "Poisson's equation by multigrid.", sizes);
    struct grid grids[LEVELS];
    double *sides[LEVELS];
    int levels = 0;
    for (long x = size.x, y = size.y, z = size.z; levels < LEVELS && x >= 2 && y >= 2 && z >= 2; x /= 2, y /= 2, z /= 2) {
        const size_t n = (size_t)(x * y * z);
        grids[levels] = (struct grid){x, y, z, zeros(n), zeros(n)};
        sides[levels++] = zeros(n);
    }
    const long n = size.x * size.y * size.z;
    for (int k = 0; k < 2 * CHARGES; k++) {
        double *place;
        uint64_t draw = (uint64_t)k << 32;
        do
            place = &sides[0][random_bits(SEED, draw++) % (uint64_t)n];
        while (*place != 0);
        *place = k < CHARGES ? 1 : -1;
    }

    const double start = norm(sides[0], n);
    double last = start;
    for (long step = 0; step < size.steps; step++) {
        double square = 1;
        for (int level = 0; level + 1 < levels; level++, square *= 4) {
            if (level)
                memset(grids[level].u, 0, (size_t)(grids[level].x * grids[level].y * grids[level].z) * sizeof(double));
            smooth(&grids[level], sides[level], square);
            residual(&grids[level], sides[level], square);
            restrict_to(&grids[level], &grids[level + 1], sides[level + 1]);
        }
        const struct grid *coarsest = &grids[levels - 1];
        memset(coarsest->u, 0, (size_t)(coarsest->x * coarsest->y * coarsest->z) * sizeof(double));
        for (int pass = 0; pass < 4; pass++)
            smooth(coarsest, sides[levels - 1], square);
        for (int level = levels - 2; level >= 0; level--) {
            square /= 4;
            correct(&grids[level], &grids[level + 1]);
            smooth(&grids[level], sides[level], square);
        }
        residual(&grids[0], sides[0], 1);
        last = norm(grids[0].r, n);
        step_done(step + 1, size.steps, "residual", last);
    }

    printf("the residual is %.3e of what it was\n", last / start);
    uint64_t d = digest(DIGEST_START, grids[0].u, (size_t)n * sizeof(double));
    return conclude(d, last / start < pow(0.8, (double)size.steps) || last / start < 1e-10);
}
