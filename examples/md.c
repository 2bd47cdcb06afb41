/* Molecular dynamics: Lennard-Jones atoms in a periodic box, integrated by velocity Verlet.
 *
 * Every device holds all positions and works on its own share of the atoms; after each step the devices
 * exchange positions through the host. Each atom sums the forces upon it in one fixed order, so that the
 * result is the same, bit for bit, on any number of devices and threads. Verified by the conservation of
 * energy and momentum and by forces recomputed on the host. */
#include "common.h"
#include <math.h>

#pragma omp declare target
/* The system, the same on all devices. */
struct box {
    long atoms;
    double side;     /* of the periodic box, in units of the atoms' diameter */
    double cutoff;   /* range of the force */
    double shift;    /* energy of a pair at the cutoff */
    double timestep;
};
struct box box;
/* Forces that this device has computed since the start. */
long evaluations;

static inline double nearest_image(double d, double side)
{
    return d > 0.5 * side ? d - side : d < -0.5 * side ? d + side : d;
}

/* The force upon atom i, and its half of the energies of its pairs. */
static inline double force_on(long i, const double *restrict x, const double *restrict y, const double *restrict z, double force[3])
{
    const double side = box.side, range = box.cutoff * box.cutoff, shift = box.shift;
    const long atoms = box.atoms;
    double fx = 0, fy = 0, fz = 0, energy = 0;
    for (long j = 0; j < atoms; j++) {
        double dx = nearest_image(x[i] - x[j], side);
        double dy = nearest_image(y[i] - y[j], side);
        double dz = nearest_image(z[i] - z[j], side);
        double squared = dx * dx + dy * dy + dz * dz;
        if (squared < range && j != i) {
            double s2 = 1 / squared, s6 = s2 * s2 * s2;
            double strength = 48 * s2 * s6 * (s6 - 0.5);
            fx += strength * dx;
            fy += strength * dy;
            fz += strength * dz;
            energy += 2 * s6 * (s6 - 1) - 0.5 * shift;
        }
    }
    force[0] = fx;
    force[1] = fy;
    force[2] = fz;
    return energy;
}

static inline double wrap(double x, double side)
{
    return x < 0 ? x + side : x >= side ? x - side : x;
}
#pragma omp end declare target

/* One array per component: of position, velocity and force; and both energies of each atom. */
struct system {
    double *x, *y, *z, *vx, *vy, *vz, *fx, *fy, *fz, *potential, *kinetic;
};

static void compute_forces(struct system *s, long from, long to, int device)
{
    double *x = s->x, *y = s->y, *z = s->z, *fx = s->fx, *fy = s->fy, *fz = s->fz, *potential = s->potential;
#pragma omp target teams distribute parallel for device(device) map(to : x[0 : 0], y[0 : 0], z[0 : 0], fx[0 : 0], fy[0 : 0], fz[0 : 0], potential[0 : 0])
    for (long i = from; i < to; i++) {
        double force[3];
        potential[i] = force_on(i, x, y, z, force);
        fx[i] = force[0];
        fy[i] = force[1];
        fz[i] = force[2];
    }
}

/* Half a step of velocity, a whole one of position. */
static void move(struct system *s, long from, long to, int device)
{
    double *x = s->x, *y = s->y, *z = s->z, *vx = s->vx, *vy = s->vy, *vz = s->vz, *fx = s->fx, *fy = s->fy, *fz = s->fz;
#pragma omp target teams distribute parallel for device(device) map(to : x[0 : 0], y[0 : 0], z[0 : 0], vx[0 : 0], vy[0 : 0], vz[0 : 0], fx[0 : 0], fy[0 : 0], fz[0 : 0])
    for (long i = from; i < to; i++) {
        double t = box.timestep, side = box.side;
        vx[i] += 0.5 * t * fx[i];
        vy[i] += 0.5 * t * fy[i];
        vz[i] += 0.5 * t * fz[i];
        x[i] = wrap(x[i] + t * vx[i], side);
        y[i] = wrap(y[i] + t * vy[i], side);
        z[i] = wrap(z[i] + t * vz[i], side);
    }
}

/* The other half step of velocity. */
static void finish(struct system *s, long from, long to, int device)
{
    double *vx = s->vx, *vy = s->vy, *vz = s->vz, *fx = s->fx, *fy = s->fy, *fz = s->fz, *kinetic = s->kinetic;
#pragma omp target teams distribute parallel for device(device) map(to : vx[0 : 0], vy[0 : 0], vz[0 : 0], fx[0 : 0], fy[0 : 0], fz[0 : 0], kinetic[0 : 0])
    for (long i = from; i < to; i++) {
        double t = box.timestep;
        vx[i] += 0.5 * t * fx[i];
        vy[i] += 0.5 * t * fy[i];
        vz[i] += 0.5 * t * fz[i];
        kinetic[i] = 0.5 * (vx[i] * vx[i] + vy[i] * vy[i] + vz[i] * vz[i]);
    }
#pragma omp target device(device)
    evaluations += to - from;
}

/* Atoms on a face-centred cubic lattice, at random velocities whose sum is zero. */
static void arrange(struct system *s, long cells)
{
    const double corner[4][3] = {{0, 0, 0}, {0.5, 0.5, 0}, {0.5, 0, 0.5}, {0, 0.5, 0.5}};
    double mean[3] = {0, 0, 0};
    for (long i = 0; i < box.atoms; i++) {
        long cell = i / 4;
        double edge = box.side / (double)cells;
        s->x[i] = edge * ((double)(cell % cells) + corner[i % 4][0]);
        s->y[i] = edge * ((double)(cell / cells % cells) + corner[i % 4][1]);
        s->z[i] = edge * ((double)(cell / cells / cells) + corner[i % 4][2]);
        s->vx[i] = 2.5 * (random_unit(1, (uint64_t)(3 * i)) - 0.5);
        s->vy[i] = 2.5 * (random_unit(1, (uint64_t)(3 * i + 1)) - 0.5);
        s->vz[i] = 2.5 * (random_unit(1, (uint64_t)(3 * i + 2)) - 0.5);
        mean[0] += s->vx[i] / (double)box.atoms;
        mean[1] += s->vy[i] / (double)box.atoms;
        mean[2] += s->vz[i] / (double)box.atoms;
    }
    for (long i = 0; i < box.atoms; i++) {
        s->vx[i] -= mean[0];
        s->vy[i] -= mean[1];
        s->vz[i] -= mean[2];
        s->kinetic[i] = 0.5 * (s->vx[i] * s->vx[i] + s->vy[i] * s->vy[i] + s->vz[i] * s->vz[i]);
    }
}

static double sum(const double *values)
{
    double total = 0;
    for (long i = 0; i < box.atoms; i++)
        total += values[i];
    return total;
}

int main(int argc, char **argv)
{
    long cells = 9, steps = 400, report = 20;
    const struct setting settings[] = {
        {"cells", &cells, 3, "edge of the lattice; there are 4 x cells^3 atoms"},
        {"steps", &steps, 1, "steps to compute"},
        {"report", &report, 1, "steps from one line of progress to the next"},
        {NULL, NULL, 0, NULL},
    };
    struct devices devices = parse_options(argc, argv, "Molecular dynamics of Lennard-Jones atoms in a periodic box.", settings);

    const long atoms = 4 * cells * cells * cells;
    box.atoms = atoms;
    box.side = cbrt((double)atoms / 0.8442);
    box.cutoff = fmin(2.5, 0.49 * box.side);
    box.shift = 4 * (pow(box.cutoff, -12) - pow(box.cutoff, -6));
    box.timestep = 0.002;

    struct system s;
    double **arrays[] = {&s.x, &s.y, &s.z, &s.vx, &s.vy, &s.vz, &s.fx, &s.fy, &s.fz, &s.potential, &s.kinetic};
    for (size_t k = 0; k < sizeof arrays / sizeof *arrays; k++)
        *arrays[k] = allocate((size_t)atoms * sizeof(double));
    arrange(&s, cells);
    printf("md: %ld atoms, %ld steps, %d device%s\n", atoms, steps, devices.count, devices.count == 1 ? "" : "s");

    double *x = s.x, *y = s.y, *z = s.z, *vx = s.vx, *vy = s.vy, *vz = s.vz;
    double *fx = s.fx, *fy = s.fy, *fz = s.fz, *potential = s.potential, *kinetic = s.kinetic;
    double energy_at_start = 0, energy = 0;
    long evaluated = 0;

    /* One host thread drives each device. */
#pragma omp parallel num_threads(devices.count)
    {
        const int me = omp_get_thread_num(), device = device_number(&devices, me);
        const long from = share(atoms, me, devices.count), to = share(atoms, me + 1, devices.count), mine = to - from;

#pragma omp target update to(box, evaluations) device(device)
#pragma omp target enter data map(to : x[0 : atoms], y[0 : atoms], z[0 : atoms], vx[0 : atoms], vy[0 : atoms], vz[0 : atoms]) device(device)
#pragma omp target enter data map(alloc : fx[0 : atoms], fy[0 : atoms], fz[0 : atoms], potential[0 : atoms], kinetic[0 : atoms]) device(device)
        compute_forces(&s, from, to, device);
#pragma omp target update from(potential[from : mine]) device(device)
#pragma omp barrier
        if (me == 0)
            energy_at_start = sum(potential) + sum(kinetic);

        for (long step = 1; step <= steps; step++) {
            move(&s, from, to, device);
            if (devices.count > 1) {
#pragma omp target update from(x[from : mine], y[from : mine], z[from : mine]) device(device)
#pragma omp barrier
#pragma omp target update to(x[0 : from], y[0 : from], z[0 : from]) device(device)
#pragma omp target update to(x[to : atoms - to], y[to : atoms - to], z[to : atoms - to]) device(device)
                /* Nobody moves on, and overwrites the host's copy, before all have read it. */
#pragma omp barrier
            }
            compute_forces(&s, from, to, device);
            finish(&s, from, to, device);
            if (step % report == 0 || step == steps) {
#pragma omp target update from(potential[from : mine], kinetic[from : mine]) device(device)
#pragma omp barrier
                /* The others cannot overwrite what is summed here: the next exchange waits for this thread. */
                if (me == 0) {
                    energy = sum(potential) + sum(kinetic);
                    printf("step %ld/%ld energy %.9f temperature %.6f\n", step, steps, energy / (double)atoms,
                           sum(kinetic) / (1.5 * (double)atoms));
                }
            }
        }

#pragma omp target update from(x[from : mine], y[from : mine], z[from : mine], vx[from : mine], vy[from : mine], vz[from : mine]) device(device)
#pragma omp target update from(fx[from : mine], fy[from : mine], fz[from : mine]) device(device)
#pragma omp target exit data map(delete : x[0 : atoms], y[0 : atoms], z[0 : atoms], vx[0 : atoms], vy[0 : atoms], vz[0 : atoms]) device(device)
#pragma omp target exit data map(delete : fx[0 : atoms], fy[0 : atoms], fz[0 : atoms], potential[0 : atoms], kinetic[0 : atoms]) device(device)
        /* All devices have their own `evaluations`; the host's copy receives one after the other. */
#pragma omp critical
        if (!devices.host) {
#pragma omp target update from(evaluations) device(device)
            evaluated += evaluations;
        }
    }
    if (devices.host)
        evaluated = evaluations;

    int good = 1;
    double drift = fabs((energy - energy_at_start) / energy_at_start);
    double momentum = fabs(sum(vx)) + fabs(sum(vy)) + fabs(sum(vz)), difference = 0;
    for (long k = 0; k < 16; k++) {
        long i = (long)(random_bits(2, (uint64_t)k) % (uint64_t)atoms);
        double force[3];
        force_on(i, x, y, z, force);
        difference = fmax(difference, fabs(force[0] - fx[i]) + fabs(force[1] - fy[i]) + fabs(force[2] - fz[i]));
    }
    good &= drift < 1e-3;
    good &= momentum < 1e-9 * (double)atoms;
    good &= difference < 1e-6;
    good &= evaluated == steps * atoms;
    printf("energy drift %.2e, momentum %.2e, forces differ by %.2e, %ld evaluations\n", drift, momentum, difference, evaluated);

    uint64_t d = DIGEST_START;
    for (size_t k = 0; k < 6; k++)
        d = digest(d, *arrays[k], (size_t)atoms * sizeof(double));
    return conclude(d, good);
}
