/* Monte Carlo: particles enter a slab of material and fly, scatter and are absorbed in it.
 *
 * Each particle draws its own sequence of random numbers, and all tallies are integers, so that sums do not
 * depend on their order: the result is the same, bit for bit, on any number of devices and threads. Verified by
 * the count of particles, by a slab without scattering (whose transmission is known: exp(-thickness)) and by
 * particles recomputed on the host. */
#include "common.h"
#include <math.h>

#define BINS 256
#define SEED 20u

enum fate { ABSORBED, REFLECTED, TRANSMITTED };

#pragma omp declare target
/* The life of one particle; `depth` is where it ended, in mean free paths from the surface. */
static inline enum fate fly(uint64_t particle, double thickness, double scattering, double *depth, long *collisions)
{
    double at = 0, direction = 1;
    uint64_t draw = particle << 16;
    for (;;) {
        at += -log(random_unit(SEED, draw++)) * direction;
        *depth = at;
        if (at < 0)
            return REFLECTED;
        if (at >= thickness)
            return TRANSMITTED;
        ++*collisions;
        if (random_unit(SEED, draw++) >= scattering)
            return ABSORBED;
        direction = 2 * random_unit(SEED, draw++) - 1;
    }
}
#pragma omp end declare target

struct tally {
    long fate[3];
    long collisions;
};

/* Particles from..to on one device; the histogram of depths stays on the device. */
static struct tally run(long from, long to, double thickness, double scattering, long *histogram, int device)
{
    long absorbed = 0, reflected = 0, transmitted = 0, collisions = 0;
#pragma omp target teams distribute parallel for device(device) map(tofrom : absorbed, reflected, transmitted, collisions) reduction(+ : absorbed, reflected, transmitted, collisions, histogram[0 : BINS])
    for (long i = from; i < to; i++) {
        double depth;
        long mine = 0;
        enum fate fate = fly((uint64_t)i, thickness, scattering, &depth, &mine);
        collisions += mine;
        if (fate == ABSORBED) {
            absorbed++;
            long bin = (long)(depth / thickness * BINS);
            histogram[bin < BINS ? bin : BINS - 1]++;
        } else if (fate == REFLECTED) {
            reflected++;
        } else {
            transmitted++;
        }
    }
    return (struct tally){{absorbed, reflected, transmitted}, collisions};
}

int main(int argc, char **argv)
{
    long particles = 192l << 20, batches = 12, thickness_thousandths = 3000, scattering_thousandths = 900;
    const struct setting settings[] = {
        {"particles", &particles, 1, "particles in all"},
        {"batches", &batches, 1, "target regions that they are divided among"},
        {"thickness", &thickness_thousandths, 1, "thickness of the slab in thousandths of a mean free path"},
        {"scattering", &scattering_thousandths, 0, "thousandths of collisions that scatter; the others absorb"},
        {NULL, NULL, 0, NULL},
    };
    struct devices devices = parse_options(argc, argv, "Monte Carlo transport of particles through a slab.", settings);
    if (scattering_thousandths > 999) {
        fprintf(stderr, "mc: --scattering must be below 1000, or no particle is ever absorbed\n");
        return 2;
    }
    const double thickness = (double)thickness_thousandths / 1000, scattering = (double)scattering_thousandths / 1000;
    printf("mc: %ld particles in %ld batches, %d device%s\n", particles, batches, devices.count, devices.count == 1 ? "" : "s");

    struct tally total = {{0, 0, 0}, 0};
    long depths[BINS] = {0}, done = 0;

    /* One host thread drives each device; the devices take batches in turn. */
#pragma omp parallel num_threads(devices.count)
    {
        const int me = omp_get_thread_num(), device = device_number(&devices, me);
        long histogram[BINS] = {0};
#pragma omp target enter data map(to : histogram[0 : BINS]) device(device)
        for (long batch = me; batch < batches; batch += devices.count) {
            long from = share(particles, (int)batch, (int)batches), to = share(particles, (int)batch + 1, (int)batches);
            struct tally t = run(from, to, thickness, scattering, histogram, device);
#pragma omp critical
            {
                for (int k = 0; k < 3; k++)
                    total.fate[k] += t.fate[k];
                total.collisions += t.collisions;
                printf("batch %ld/%ld: %ld absorbed, %ld reflected, %ld transmitted so far\n", ++done, batches,
                       total.fate[ABSORBED], total.fate[REFLECTED], total.fate[TRANSMITTED]);
            }
        }
#pragma omp target exit data map(from : histogram[0 : BINS]) device(device)
#pragma omp critical
        for (int k = 0; k < BINS; k++)
            depths[k] += histogram[k];
    }

    /* A slab that only absorbs lets exp(-thickness) of the particles through. */
    const long sample = particles < 1l << 20 ? particles : 1l << 20;
    long unused[BINS] = {0};
    struct tally pure;
    const int device = device_number(&devices, 0);
#pragma omp target data map(to : unused[0 : BINS]) device(device)
    pure = run(0, sample, thickness, 0, unused, device);
    double expected = exp(-thickness) * (double)sample, sigma = sqrt(expected * (1 - exp(-thickness))) + 1;
    double deviation = fabs((double)pure.fate[TRANSMITTED] - expected) / sigma;

    /* The first particles once more, on the device and on the host. */
    const long again = sample < 20000 ? sample : 20000;
    struct tally there, here = {{0, 0, 0}, 0};
#pragma omp target data map(to : unused[0 : BINS]) device(device)
    there = run(0, again, thickness, scattering, unused, device);
    for (long i = 0; i < again; i++) {
        double depth;
        here.fate[fly((uint64_t)i, thickness, scattering, &depth, &here.collisions)]++;
    }

    long in_histogram = 0;
    for (int k = 0; k < BINS; k++)
        in_histogram += depths[k];
    int good = total.fate[ABSORBED] + total.fate[REFLECTED] + total.fate[TRANSMITTED] == particles;
    good &= in_histogram == total.fate[ABSORBED];
    good &= deviation < 5;
    good &= memcmp(&here, &there, sizeof here) == 0;
    printf("transmitted %.6f of the particles; without scattering %.2f standard deviations from theory\n",
           (double)total.fate[TRANSMITTED] / (double)particles, deviation);

    uint64_t d = digest(DIGEST_START, &total, sizeof total);
    d = digest(d, depths, sizeof depths);
    d = digest(d, &pure, sizeof pure);
    return conclude(d, good);
}
