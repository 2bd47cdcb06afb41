/* BT: the equations of flow.h by an alternating direction method, whose lines are block tridiagonal systems of 5 x 5 blocks.
 *
 * A step writes the residual and the properties throughout, sweeps over the residual along each axis with strides of 1, n and
 * n*n points, and adds it to the fields: everything but the forcing. */
#include "flow.h"

#define STEP 0.8

/* Solves all lines along an axis in place. */
static void solve_lines(struct flow *f, int axis)
{
    const long n = f->n, s = stride(f, axis);
    const long across = stride(f, (axis + 1) % 3), along = stride(f, (axis + 2) % 3);
    double (*upper)[FIELDS][FIELDS] = allocate((size_t)n * sizeof *upper);
    for (long a = EDGE; a < n - EDGE; a++)
        for (long b = EDGE; b < n - EDGE; b++) {
            const long line = a * across + b * along;
            for (long i = EDGE; i < n - EDGE; i++) {
                const long at = line + i * s;
                const double w = 0.5 * STEP * f->speed[axis][at];
                double *rhs = &f->rhs[FIELDS * at], diagonal[FIELDS][FIELDS], lower[FIELDS][FIELDS];
                for (int m = 0; m < FIELDS; m++)
                    for (int k = 0; k < FIELDS; k++) {
                        const double own = m == k;
                        diagonal[m][k] = own * (1 + STEP * (2 * VISCOSITY + 6 * DISSIPATION)) +
                                         STEP / 3 * f->rate[at] * reaction[m][k];
                        lower[m][k] = -own * STEP * (VISCOSITY + 4 * DISSIPATION) - w * mixing[axis][m][k];
                        upper[i][m][k] = -own * STEP * (VISCOSITY + 4 * DISSIPATION) + w * mixing[axis][m][k];
                    }
                if (i > EDGE)
                    for (int m = 0; m < FIELDS; m++)
                        for (int k = 0; k < FIELDS; k++) {
                            rhs[m] -= lower[m][k] * rhs[k - FIELDS * s];
                            for (int l = 0; l < FIELDS; l++)
                                diagonal[m][l] -= lower[m][k] * upper[i - 1][k][l];
                        }
                solve_block(diagonal, upper[i], rhs);
            }
            for (long i = n - EDGE - 2; i >= EDGE; i--) {
                double *rhs = &f->rhs[FIELDS * (line + i * s)];
                for (int m = 0; m < FIELDS; m++)
                    for (int k = 0; k < FIELDS; k++)
                        rhs[m] -= upper[i][m][k] * rhs[k + FIELDS * s];
            }
        }
    free(upper);
}

int main(int argc, char **argv)
{
    const struct size size = kernel_options(argc, argv, "Flow by block tridiagonal lines.", flow_sizes);
    struct flow f = flow_begin(size.x);
    const double before = distance(&f), start = residual(&f);
    for (long step = 0; step < size.steps; step++) {
        const double left = residual(&f);
        for (long i = 0; i < FIELDS * size.x * size.x * size.x; i++)
            f.rhs[i] *= STEP;
        for (int axis = 0; axis < 3; axis++)
            solve_lines(&f, axis);
        advance(&f, 1);
        step_done(step + 1, size.steps, "residual", sqrt(left));
    }
    return flow_end(&f, size.steps, before, start);
}
