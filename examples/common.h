/* What the five programs share: options and the choice of devices. */
#ifndef EXAMPLES_COMMON_H
#define EXAMPLES_COMMON_H

#include <errno.h>
#include <omp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "result.h"

/* ---- options ------------------------------------------------------------------------------- */

/* A number given as --name VALUE or --name=VALUE; k, m and g behind it multiply by 2^10, 2^20, 2^30. */
struct setting {
    const char *name;
    long *value;
    long least;
    const char *help;
};

static void usage(FILE *to, const char *program, const char *about, const struct setting *settings)
{
    fprintf(to, "usage: %s [OPTION VALUE]...\n%s\n\noptions:\n", program, about);
    for (const struct setting *s = settings; s->name; s++)
        fprintf(to, "  --%-12s %s (default %ld)\n", s->name, s->help, *s->value);
    fprintf(to, "  --%-12s first OpenMP device to use (default 0)\n", "device");
    fprintf(to, "  --%-12s how many devices share the work (default 1)\n", "devices");
    fprintf(to, "  --%-12s run the target regions on the host\n", "host");
    fprintf(to, "  --%-12s print this\n", "help");
}

static long number(const char *program, const char *name, const char *text, long least)
{
    char *end;
    errno = 0;
    long value = strtol(text, &end, 10);
    int shift = *end == 'k' ? 10 : *end == 'm' ? 20 : *end == 'g' ? 30 : 0;
    if (end == text || end[shift != 0] != '\0' || errno || value < least || value > (INT64_MAX >> shift)) {
        fprintf(stderr, "%s: --%s takes a number of at least %ld, not '%s'\n", program, name, least, text);
        exit(2);
    }
    return value << shift;
}

/* The devices that do the work: `count` of them from number `first` on. */
struct devices {
    int first;
    int count;
    int host;
};

/* The OpenMP number of device i of those in use. */
static int device_number(const struct devices *devices, int i)
{
    return devices->host ? omp_get_initial_device() : devices->first + i;
}

static struct devices parse_options(int argc, char **argv, const char *about, const struct setting *settings)
{
    const char *program = strrchr(argv[0], '/') ? strrchr(argv[0], '/') + 1 : argv[0];
    long first = 0, count = 1;
    int host = 0;
    const struct setting general[] = {{"device", &first, 0, ""}, {"devices", &count, 1, ""}, {NULL, NULL, 0, NULL}};

    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0) {
            usage(stdout, program, about, settings);
            exit(0);
        }
        if (strcmp(argv[i], "--host") == 0) {
            host = 1;
            continue;
        }
        const char *name = strncmp(argv[i], "--", 2) == 0 ? argv[i] + 2 : argv[i];
        size_t length = strcspn(name, "=");
        const struct setting *found = NULL;
        for (const struct setting *s = settings; s->name; s++)
            if (strlen(s->name) == length && strncmp(s->name, name, length) == 0)
                found = s;
        for (const struct setting *s = general; s->name; s++)
            if (strlen(s->name) == length && strncmp(s->name, name, length) == 0)
                found = s;
        const char *text = name[length] == '=' ? name + length + 1 : argv[i + 1] ? argv[++i] : NULL;
        if (!found || !text) {
            fprintf(stderr, "%s: --%.*s %s\n", program, (int)length, name, found ? "needs a value" : "is no option");
            usage(stderr, program, about, settings);
            exit(2);
        }
        *found->value = number(program, found->name, text, found->least);
    }

    /* Without a device an OpenMP program silently runs its target regions on the host. */
    int present = omp_get_num_devices();
    if (!host && first + count > present) {
        fprintf(stderr, "%s: device %ld wanted, but this machine has %d OpenMP device%s; --host runs without\n", program,
                first + count - 1, present, present == 1 ? "" : "s");
        exit(1);
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    /* The host has one memory, so that there is nothing to share the work among. */
    return (struct devices){.first = (int)first, .count = host ? 1 : (int)count, .host = host};
}

/* Where the part of device i begins when `total` things are shared among `count` devices. */
static inline long share(long total, int i, int count)
{
    return total / count * i + (total % count < i ? total % count : i);
}

#endif
