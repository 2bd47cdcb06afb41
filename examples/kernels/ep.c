/* EP, "embarrassingly parallel": pairs of normal deviates by the polar method, counted by the square ring that they lie in.
 *
 * One buffer is filled again and again, and is all the memory that there is. Verified by the share of points that lie
 * within the circle, and by the variance of what they become. x is the size of the buffer in pairs, y the buffers of a step. */
#include "kernel.h"

#define RINGS 10
#define SEED 271u

int main(int argc, char **argv)
{
    static const struct size sizes[] = {
        {'S', 1l << 16, 8, 1, 20},   {'W', 1l << 16, 16, 1, 20},  {'A', 1l << 16, 128, 1, 20},
        {'B', 1l << 16, 256, 1, 20}, {'C', 1l << 16, 512, 1, 20}, {0, 0, 0, 0, 0},
    };
    const struct size size = kernel_options(argc, argv, "Gaussian deviates, counted by rings.", sizes);
    double *x = allocate((size_t)size.x * 2 * sizeof *x);
    long count[RINGS] = {0}, accepted = 0;
    double sum_x = 0, sum_y = 0, squares = 0;

    for (long step = 0; step < size.steps; step++) {
        for (long buffer = 0; buffer < size.y; buffer++) {
            const uint64_t from = (uint64_t)(step * size.y + buffer) * (uint64_t)size.x * 2;
            for (long i = 0; i < 2 * size.x; i++)
                x[i] = 2 * random_unit(SEED, from + (uint64_t)i) - 1;
            for (long i = 0; i < size.x; i++) {
                const double square = x[2 * i] * x[2 * i] + x[2 * i + 1] * x[2 * i + 1];
                if (square > 1)
                    continue;
                const double factor = sqrt(-2 * log(square) / square);
                const double a = x[2 * i] * factor, b = x[2 * i + 1] * factor;
                const double larger = fmax(fabs(a), fabs(b));
                count[larger < RINGS ? (int)larger : RINGS - 1]++;
                accepted++;
                sum_x += a;
                sum_y += b;
                squares += a * a + b * b;
            }
        }
        step_done(step + 1, size.steps, "sum", sum_x);
    }

    const double pairs = (double)size.x * (double)size.y * (double)size.steps, expected = pairs * M_PI / 4;
    const double deviation = fabs((double)accepted - expected) / sqrt(expected * (1 - M_PI / 4));
    /* The squares of 2n normal deviates have mean 2n and variance 4n. */
    const double spread = fabs(squares - 2.0 * (double)accepted) / sqrt(4.0 * (double)accepted);
    printf("points and variance are %.2f and %.2f standard deviations from theory\n", deviation, spread);
    uint64_t d = digest(DIGEST_START, count, sizeof count);
    d = digest(d, &sum_x, sizeof sum_x);
    d = digest(d, &sum_y, sizeof sum_y);
    free(x);
    return conclude(d, deviation < 5 && spread < 5);
}
