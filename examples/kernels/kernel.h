/* What the kernels share: classes of size, options, progress.
 *
 * Each kernel does to memory what the NAS parallel benchmark of its name does (D. Bailey and others, "The NAS Parallel
 * Benchmarks", 1991), as one task of a parallel job: which arrays there are, which of them are written in each step and in
 * which order. The programs are of our own, their classes are sized by memory, and their results are theirs only. */
#ifndef KERNELS_KERNEL_H
#define KERNELS_KERNEL_H

#include "../result.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>

/* A class of size: the three numbers mean what the kernel says, and `steps` are done unless others are asked for. */
struct size {
    char name;
    long x, y, z;
    long steps;
};

static void kernel_usage(FILE *to, const char *program, const char *about, const struct size *sizes)
{
    fprintf(to, "usage: %s [--class C] [--steps N]\n%s\n\nclasses:\n", program, about);
    for (const struct size *s = sizes; s->name; s++)
        fprintf(to, "  %c  %ld x %ld x %ld, %ld steps\n", s->name, s->x, s->y, s->z, s->steps);
}

/* The class and number of steps that are asked for; `sizes` ends with one without a name, and its first is the default. */
static struct size kernel_options(int argc, char **argv, const char *about, const struct size *sizes)
{
    const char *program = strrchr(argv[0], '/') ? strrchr(argv[0], '/') + 1 : argv[0];
    struct size chosen = sizes[0];
    long steps = 0;
    for (int i = 1; i < argc; i += 2) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(argv[i], "--help") == 0) {
            kernel_usage(stdout, program, about, sizes);
            exit(0);
        }
        bool good = false;
        if (strcmp(argv[i], "--class") == 0) {
            for (const struct size *s = sizes; s->name; s++)
                if (value[0] == s->name && !value[1]) {
                    chosen = *s;
                    good = true;
                }
        } else if (strcmp(argv[i], "--steps") == 0) {
            char *end;
            errno = 0;
            steps = strtol(value, &end, 10);
            good = end != value && !*end && !errno && steps >= 1;
        }
        if (!good) {
            fprintf(stderr, "%s: what is '%s %s'?\n", program, argv[i], value);
            kernel_usage(stderr, program, about, sizes);
            exit(2);
        }
    }
    if (steps)
        chosen.steps = steps;
    setvbuf(stdout, NULL, _IOLBF, 0);
    printf("%s: class %c, %ld x %ld x %ld, %ld steps\n", program, chosen.name, chosen.x, chosen.y, chosen.z, chosen.steps);
    return chosen;
}

/* Numbers that are all zero. */
static inline double *zeros(size_t count)
{
    double *memory = allocate(count * sizeof *memory);
    memset(memory, 0, count * sizeof *memory);
    return memory;
}

/* The line that ends a step. */
static inline void step_done(long step, long steps, const char *what, double value)
{
    printf("step %ld/%ld: %s %.15e\n", step, steps, what, value);
}

#endif
