/* LU: the equations of flow.h by symmetric successive over-relaxation.
 *
 * A step writes the residual throughout, sweeps over it from the first point to the last and back, each point needing the
 * three that the sweep has been at, and adds it to the fields. The sweeps write the residual only. */
#include "flow.h"

#define STEP 0.8
#define RELAXATION 1.2

/* One point: takes off what the neighbours on one side (`direction` -1 before it, 1 after it) contribute, and solves its
 * block. On the way forth the right-hand side is what is at the point; on the way back the contribution alone is solved for
 * and taken off what is there. */
static inline void relax(struct flow *f, long at, int direction)
{
    double *v = &f->rhs[FIELDS * at], sum[FIELDS] = {0}, block[FIELDS][FIELDS], unused[FIELDS][FIELDS] = {{0}};
    for (int axis = 0; axis < 3; axis++) {
        const double *next = v + direction * FIELDS * stride(f, axis);
        const double w = 0.5 * STEP * direction * f->speed[axis][at];
        for (int m = 0; m < FIELDS; m++) {
            double part = -STEP * (VISCOSITY + 4 * DISSIPATION) * next[m];
            for (int k = 0; k < FIELDS; k++)
                part += w * mixing[axis][m][k] * next[k];
            sum[m] += RELAXATION * part;
        }
    }
    for (int m = 0; m < FIELDS; m++)
        for (int k = 0; k < FIELDS; k++)
            block[m][k] =
                (m == k) * (1 + 3 * STEP * (2 * VISCOSITY + 6 * DISSIPATION)) + STEP * f->rate[at] * reaction[m][k];
    if (direction < 0)
        for (int m = 0; m < FIELDS; m++)
            sum[m] = v[m] - sum[m];
    solve_block(block, unused, sum);
    for (int m = 0; m < FIELDS; m++)
        v[m] = direction < 0 ? sum[m] : v[m] - sum[m];
}

int main(int argc, char **argv)
{
    const struct size size = kernel_options(argc, argv, "Flow by symmetric over-relaxation.", flow_sizes);
    struct flow f = flow_begin(size.x);
    const long n = f.n;
    const double before = distance(&f), start = residual(&f);
    for (long step = 0; step < size.steps; step++) {
        const double left = residual(&f);
        for (long i = 0; i < FIELDS * n * n * n; i++)
            f.rhs[i] *= STEP;
        FOR_INNER(&f)
            relax(&f, point(&f, x, y, z), -1);
        for (long z = n - EDGE - 1; z >= EDGE; z--)
            for (long y = n - EDGE - 1; y >= EDGE; y--)
                for (long x = n - EDGE - 1; x >= EDGE; x--)
                    relax(&f, point(&f, x, y, z), 1);
        advance(&f, 1 / (RELAXATION * (2 - RELAXATION)));
        step_done(step + 1, size.steps, "residual", sqrt(left));
    }
    return flow_end(&f, size.steps, before, start);
}
