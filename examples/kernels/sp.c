/* SP: the equations of flow.h by an alternating direction method, whose lines are five scalar pentadiagonal systems.
 *
 * As BT, but coefficients of all lines of a plane are laid out before they are solved, which takes more memory and less
 * arithmetic. */
#include "flow.h"

#define STEP 0.8
#define BANDS 5

/* Solves all lines along an axis in place; the transport's mixing of fields is left out, as the iteration makes up for it. */
static void solve_lines(struct flow *f, int axis, double (*band)[BANDS])
{
    const long n = f->n, s = stride(f, axis), last = n - EDGE - 1;
    const long across = stride(f, (axis + 1) % 3), along = stride(f, (axis + 2) % 3);
    for (long a = EDGE; a < n - EDGE; a++) {
        for (long b = EDGE; b < n - EDGE; b++)
            for (long i = EDGE; i < n - EDGE; i++) {
                const long at = a * across + b * along + i * s;
                const double w = 0.5 * STEP * f->speed[axis][at] * mixing[axis][0][0], d = STEP * DISSIPATION;
                double *line = band[b * n + i];
                line[0] = i >= EDGE + 2 ? d : 0;
                line[1] = i >= EDGE + 1 ? -STEP * VISCOSITY - 4 * d - w : 0;
                line[2] = 1 + STEP * (2 * VISCOSITY + f->rate[at] / 3) + 6 * d;
                line[3] = i <= last - 1 ? -STEP * VISCOSITY - 4 * d + w : 0;
                line[4] = i <= last - 2 ? d : 0;
            }
        for (long b = EDGE; b < n - EDGE; b++) {
            double (*line)[BANDS] = &band[b * n];
            double *rhs = &f->rhs[FIELDS * (a * across + b * along)];
            for (long i = EDGE; i <= last; i++) {
                const double pivot = 1 / line[i][2];
                line[i][3] *= pivot;
                line[i][4] *= pivot;
                for (int m = 0; m < FIELDS; m++)
                    rhs[FIELDS * i * s + m] *= pivot;
                for (long below = i + 1; below <= i + 2 && below <= last; below++) {
                    const double factor = line[below][2 - (below - i)];
                    line[below][3 - (below - i)] -= factor * line[i][3];
                    line[below][4 - (below - i)] -= factor * line[i][4];
                    for (int m = 0; m < FIELDS; m++)
                        rhs[FIELDS * below * s + m] -= factor * rhs[FIELDS * i * s + m];
                }
            }
            for (long i = last - 1; i >= EDGE; i--)
                for (int m = 0; m < FIELDS; m++) {
                    rhs[FIELDS * i * s + m] -= line[i][3] * rhs[FIELDS * (i + 1) * s + m];
                    if (i + 2 <= last)
                        rhs[FIELDS * i * s + m] -= line[i][4] * rhs[FIELDS * (i + 2) * s + m];
                }
        }
    }
}

int main(int argc, char **argv)
{
    const struct size size = kernel_options(argc, argv, "Flow by scalar pentadiagonal lines.", flow_sizes);
    struct flow f = flow_begin(size.x);
    double (*band)[BANDS] = allocate((size_t)(size.x * size.x) * sizeof *band);
    const double before = distance(&f), start = residual(&f);
    for (long step = 0; step < size.steps; step++) {
        const double left = residual(&f);
        for (long i = 0; i < FIELDS * size.x * size.x * size.x; i++)
            f.rhs[i] *= STEP;
        for (int axis = 0; axis < 3; axis++)
            solve_lines(&f, axis, band);
        advance(&f, 1);
        step_done(step + 1, size.steps, "residual", sqrt(left));
    }
    free(band);
    return flow_end(&f, size.steps, before, start);
}
