/* OpenMP target features, one line each: what a stock compiler makes of them must work on cards.
 * Runs on all devices that there are, at least one. Exit status: 0 if all is well, 1 otherwise. */
#include <math.h>
#include <omp.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define N 50000
#define MOST_DEVICES 16

static int failures;

static void report(const char *feature, int ok) {
    printf("%-44s %s\n", feature, ok ? "ok" : "FAILED");
    failures += !ok;
}

/* ---- globals on the device ----------------------------------------------------------------- */

struct link {
    struct link *next;
    long value;
};

#pragma omp declare target
int counter = 40;
double table[512];
int large[1 << 20];
short initialized[6] = {1, 2, 3, 4, 5, 6};
static struct link *chain;
static const char *const words[] = {"zero", "one", "two"};

static long gcd(long a, long b) { return b ? gcd(b, a % b) : a; }
static long twice(long x) { return 2 * x; }
static long thrice(long x) { return 3 * x; }
static long (*const functions[])(long) = {twice, thrice};
#pragma omp end declare target

static void plain_regions(void) {
    int a = 1;
    #pragma omp target
    a = 2; /* a scalar that is not mapped is a private copy */
    report("scalar stays private", a == 1);

    #pragma omp target map(tofrom : a)
    a += 6;
    report("map(tofrom)", a == 7);

    int in = 5, out = 0;
    #pragma omp target map(to : in) map(from : out)
    {
        out = in * in;
        in = 0;
    }
    report("map(to) and map(from)", out == 25 && in == 5);

    int array[100], first[3] = {1, 2, 3};
    for (int i = 0; i < 100; i++) array[i] = i;
    #pragma omp target map(tofrom : array[10 : 20]) firstprivate(first)
    {
        for (int i = 10; i < 30; i++) array[i] += first[i % 3];
        first[0] = 99;
    }
    int ok = first[0] == 1;
    for (int i = 0; i < 100; i++) ok &= array[i] == i + (i >= 10 && i < 30 ? first[i % 3] : 0);
    report("array section, firstprivate array", ok);

    int here = 0;
    #pragma omp target if (0) map(tofrom : here)
    here = omp_is_initial_device();
    report("if(0) runs on the host", here == 1);

    for (int i = 0; i < 1000; i++) {
        #pragma omp target map(tofrom : a)
        a++;
    }
    report("a thousand regions in a row", a == 1007);

    #pragma omp target map(tofrom : a)
    {}
    report("empty region", a == 1007);
}

struct record {
    char c;
    short s;
    double d;
    int tail[3];
};

static void arguments(void) {
    signed char c = -3;
    unsigned char uc = 200;
    short s = -3000;
    long l = -(1l << 40);
    uint64_t u = UINT64_MAX;
    float f = 1.5f;
    double d = -2.25;
    _Bool b = 1;
    int i0 = 1, i1 = 2, i2 = 3, i3 = 4, i4 = 5, i5 = 6, i6 = 7, i7 = 8, i8 = 9;
    struct record r = {'x', 7, 0.5, {1, 2, 3}};
    int ok = 0;
    #pragma omp target map(from : ok) map(tofrom : r)
    {
        ok = c == -3 && uc == 200 && s == -3000 && l == -(1l << 40) && u == UINT64_MAX && f == 1.5f && d == -2.25 && b;
        ok = ok && i0 + i1 + i2 + i3 + i4 + i5 + i6 + i7 + i8 == 45 && r.c == 'x' && r.s == 7 && r.d == 0.5;
        r.tail[2] = 33;
    }
    report("nineteen arguments of all types", ok && r.tail[2] == 33);

    long n = N;
    double variable_length[n];
    for (long i = 0; i < n; i++) variable_length[i] = (double)i;
    #pragma omp target teams distribute parallel for map(tofrom : variable_length)
    for (long i = 0; i < n; i++) variable_length[i] *= 2;
    report("array of variable length", variable_length[n - 1] == 2.0 * (double)(n - 1));

    double grid[20][30];
    #pragma omp target teams distribute parallel for collapse(2) map(from : grid)
    for (int i = 0; i < 20; i++)
        for (int j = 0; j < 30; j++) grid[i][j] = sin(i) * exp(-j);
    report("collapse and the mathematical library", fabs(grid[19][29] - sin(19) * exp(-29)) < 1e-20);
}

struct body {
    long count;
    double factor;
    double *mass;
};

static void structures(void) {
    struct body body = {1000, 2.5, malloc(1000 * sizeof(double))};
    double *const mass = body.mass;
    for (long i = 0; i < body.count; i++) mass[i] = (double)i;
    #pragma omp target map(to : body) map(tofrom : body.mass[0 : body.count])
    for (long i = 0; i < body.count; i++) body.mass[i] *= body.factor;
    report("structure with a pointer", body.mass == mass && mass[999] == 2497.5);

    struct body bodies[3];
    double sum = 0;
    for (int i = 0; i < 3; i++) bodies[i] = (struct body){10, i, mass + 10 * i};
    #pragma omp target enter data map(to : bodies)
    for (int i = 0; i < 3; i++) {
        #pragma omp target enter data map(to : bodies[i].mass[0 : 10])
    }
    #pragma omp target map(tofrom : sum)
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < 10; j++) sum += bodies[i].mass[j] * bodies[i].factor;
    for (int i = 0; i < 3; i++) {
        #pragma omp target exit data map(delete : bodies[i].mass[0 : 10])
    }
    #pragma omp target exit data map(delete : bodies)
    double expected = 0;
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < 10; j++) expected += mass[10 * i + j] * i;
    report("device pointers within device structures", sum == expected);
    free(mass);
}

static void data_environments(double *a, double *b) {
    for (long i = 0; i < N; i++) a[i] = (double)i, b[i] = 0;
    #pragma omp target data map(to : a[0 : N]) map(alloc : b[0 : N])
    {
        for (int round = 1; round <= 3; round++) {
            #pragma omp target teams distribute parallel for
            for (long i = 0; i < N; i++) b[i] = a[i] * round;
        }
        #pragma omp target update from(b[0 : N / 2])
        a[7] = -1;
        #pragma omp target update to(a[7 : 1])
        #pragma omp target
        b[N - 1] = a[7];
        #pragma omp target update from(b[N - 1 : 1])
    }
    report("target data and target update", b[3] == 9 && b[N / 2 - 1] == 3.0 * (N / 2 - 1) && b[N / 2] == 0 && b[N - 1] == -1);

    a[7] = 7;
    #pragma omp target enter data map(to : a[0 : N])
    #pragma omp target enter data map(to : a[0 : N])
    a[1] = 1000; /* present already: not copied again */
    #pragma omp target teams distribute parallel for
    for (long i = 0; i < N; i++) a[i] += 1;
    #pragma omp target exit data map(from : a[0 : N])
    int not_yet = a[2] == 2;
    #pragma omp target exit data map(from : a[0 : N])
    report("enter and exit data, counted references", not_yet && a[1] == 2 && a[N - 1] == N);

    #pragma omp target enter data map(to : a[0 : N])
    a[5] = 555;
    int seen = 0;
    #pragma omp target map(always, to : a[0 : N]) map(from : seen)
    seen = a[5] == 555;
    #pragma omp target exit data map(delete : a[0 : N])
    report("map(always) and map(delete)", seen && !omp_target_is_present(a, omp_get_default_device()));
}

static void globals(void) {
    int copy = 0;
    #pragma omp target map(from : copy)
    {
        counter += 2;
        copy = counter;
    }
    int host = counter;
    #pragma omp target update from(counter)
    report("global: initialized, kept apart, updated", copy == 42 && host == 40 && counter == 42);

    for (int i = 0; i < 512; i++) table[i] = i;
    #pragma omp target update to(table)
    double sum = 0;
    #pragma omp target map(tofrom : sum)
    for (int i = 0; i < 512; i++) sum += table[i];
    report("global array, updated to the device", sum == 511 * 256);

    large[1 << 19] = 77;
    int ok = 0;
    #pragma omp target update to(large)
    #pragma omp target map(from : ok)
    {
        ok = large[1 << 19] == 77 && initialized[5] == 6;
        for (int i = 0; i < 1 << 20; i++) large[i] = i;
    }
    #pragma omp target update from(large)
    report("large global", ok && large[(1 << 20) - 1] == (1 << 20) - 1);

    long values[2] = {0, 0}, same = 0;
    #pragma omp target map(from : values, same)
    {
        for (int i = 0; i < 2; i++) values[i] = functions[i](21);
        same = strcmp(words[2], "two") == 0 && gcd(1071, 462) == 21;
    }
    report("function pointers, strings, recursion", values[0] == 42 && values[1] == 63 && same);

    #pragma omp target
    for (long i = 0; i < 100000; i++) {
        struct link *link = malloc(sizeof *link);
        *link = (struct link){chain, i};
        chain = link;
    }
    long total = 0;
    #pragma omp target map(tofrom : total)
    while (chain) {
        struct link *link = chain;
        total += link->value;
        chain = link->next;
        free(link);
    }
    report("device malloc lasts from region to region", total == 99999l * 50000);
}

static void parallelism(const double *a) {
    double sum = 0, expected = 0;
    long product = 1, all = -1, any = 0;
    double largest = -1;
    int smallest = 1 << 30;
    #pragma omp target teams distribute parallel for reduction(+ : sum) reduction(max : largest) reduction(min : smallest) map(to : a[0 : N])
    for (int i = 0; i < N; i++) {
        sum += a[i];
        if (a[i] > largest) largest = a[i];
        if (i + 3 < smallest) smallest = i + 3;
    }
    #pragma omp target teams distribute parallel for reduction(* : product) reduction(& : all) reduction(| : any)
    for (int i = 0; i < 60; i++) {
        product *= i % 3 == 0 ? 2 : 1;
        all &= ~(1l << (i % 10));
        any |= 1l << i;
    }
    for (int i = 0; i < N; i++) expected += a[i];
    report("reductions", fabs(sum - expected) <= 1e-9 * expected && largest == 123456 && smallest == 3 && product == 1 << 20 &&
                              all == -1024 && any == (1l << 60) - 1);

    int histogram[16] = {0};
    #pragma omp target teams distribute parallel for reduction(+ : histogram)
    for (int i = 0; i < 1600; i++) histogram[i % 16]++;
    int ok = 1;
    for (int i = 0; i < 16; i++) ok &= histogram[i] == 100;
    report("reduction of an array", ok);

    int teams = 0, threads = 0, locked = 0, once = 0;
    #pragma omp target teams num_teams(2) map(tofrom : teams, threads, locked, once)
    {
        #pragma omp parallel
        {
            #pragma omp master
            {
                #pragma omp atomic
                teams++;
            }
            #pragma omp atomic
            threads++;
            #pragma omp critical
            locked += 2;
            #pragma omp barrier
            #pragma omp single
            {
                #pragma omp atomic
                once++;
            }
        }
    }
    report("teams, parallel, atomic, critical, single", teams >= 1 && threads >= teams && locked == 2 * threads && once == teams);

    long loop = 0, sections = 0;
    #pragma omp target map(tofrom : loop, sections)
    #pragma omp parallel num_threads(2)
    {
        /* No explicit tasks here: libomp 16 hangs on them in any process that has run a teams region. */
        #pragma omp sections
        {
            #pragma omp section
            {
                #pragma omp atomic
                sections += 1;
            }
            #pragma omp section
            {
                #pragma omp atomic
                sections += 10;
            }
        }
        #pragma omp for schedule(dynamic) reduction(+ : loop)
        for (int i = 0; i < 1000; i++) loop += i;
    }
    report("sections and a dynamic loop on the device", loop == 499500 && sections == 11);

    int scheduled = 0;
    #pragma omp target teams distribute parallel for simd schedule(guided) dist_schedule(static, 64) map(tofrom : scheduled) reduction(+ : scheduled)
    for (int i = 0; i < 10000; i++) scheduled += i & 1;
    report("schedules and simd", scheduled == 5000);
}

static void asynchronous(void) {
    int x = 1, y = 0, z = 0, w = 0;
    #pragma omp parallel num_threads(2)
    #pragma omp master
    {
        #pragma omp target nowait depend(out : x) map(tofrom : x)
        {
            usleep(20000);
            x = 5;
        }
        #pragma omp target nowait depend(in : x) depend(out : y) map(to : x) map(tofrom : y)
        y = x + 1;
        #pragma omp target nowait depend(in : x) depend(out : z) map(to : x) map(tofrom : z)
        z = x + 2;
        #pragma omp target nowait depend(in : y, z) depend(out : w) map(to : y, z) map(tofrom : w)
        w = y * z;
        #pragma omp taskwait
    }
    report("nowait with depend", x == 5 && w == 42);

    enum { REGIONS = 32 };
    int done[REGIONS] = {0}, ok = 1;
    #pragma omp parallel num_threads(2)
    #pragma omp master
    {
        for (int i = 0; i < REGIONS; i++) {
            #pragma omp target nowait map(tofrom : done[i]) firstprivate(i)
            done[i] = i + 1;
        }
        #pragma omp taskwait
    }
    for (int i = 0; i < REGIONS; i++) ok &= done[i] == i + 1;
    report("many regions with nowait", ok);

    int *data = malloc(N * sizeof(int));
    for (int i = 0; i < N; i++) data[i] = i;
    #pragma omp parallel num_threads(2)
    #pragma omp master
    {
        #pragma omp target enter data map(to : data[0 : N]) nowait depend(out : data[0])
        #pragma omp target map(tofrom : data[0 : N]) nowait depend(inout : data[0])
        for (int i = 0; i < N; i++) data[i] *= 3;
        #pragma omp target exit data map(from : data[0 : N]) nowait depend(inout : data[0])
        #pragma omp taskwait
    }
    report("enter and exit data with nowait", data[N - 1] == 3 * (N - 1));
    free(data);
}

static void memory_routines(void) {
    const int device = omp_get_default_device(), host = omp_get_initial_device();
    int *there = omp_target_alloc(N * sizeof(int), device), *here = malloc(N * sizeof(int));
    for (int i = 0; i < N; i++) here[i] = i;
    int failed = !there || omp_target_memcpy(there, here, N * sizeof(int), 0, 0, device, host);
    #pragma omp target is_device_ptr(there)
    for (int i = 0; i < N; i++) there[i] += 1;
    failed |= omp_target_memcpy(here, there, 100 * sizeof(int), 0, (N - 100) * sizeof(int), host, device);
    report("omp_target_alloc, _memcpy, is_device_ptr", !failed && here[0] == N - 99 && here[99] == N && here[100] == 100);

    int *other = omp_target_alloc(N * sizeof(int), device);
    failed = omp_target_memcpy(other, there, N * sizeof(int), 0, 0, device, device);
    failed |= omp_target_memcpy(here, other, N * sizeof(int), 0, 0, host, device);
    report("omp_target_memcpy within a device", !failed && here[N - 1] == N && here[0] == 1);
    omp_target_free(other, device);

    int square[20][20], back[20][20] = {{0}};
    for (int i = 0; i < 400; i++) square[i / 20][i % 20] = i;
    const size_t volume[] = {5, 6}, to[] = {2, 3}, from[] = {4, 1}, sides[] = {20, 20};
    failed = omp_target_memcpy_rect(there, square, sizeof(int), 2, volume, to, from, sides, sides, device, host);
    failed |= omp_target_memcpy_rect(back, there, sizeof(int), 2, volume, from, to, sides, sides, host, device);
    int ok = 1;
    for (int i = 0; i < 20; i++)
        for (int j = 0; j < 20; j++) ok &= back[i][j] == (i >= 4 && i < 9 && j >= 1 && j < 7 ? 20 * i + j : 0);
    report("omp_target_memcpy_rect", !failed && ok);

    failed = omp_target_associate_ptr(here, there, N * sizeof(int), 0, device);
    ok = omp_target_is_present(here, device);
    #pragma omp target data use_device_ptr(here)
    ok &= here == there;
    for (int i = 0; i < N; i++) here[i] = 2 * i;
    #pragma omp target update to(here[0 : N])
    #pragma omp target
    here[11] = -11;
    #pragma omp target update from(here[0 : N])
    failed |= omp_target_disassociate_ptr(here, device);
    report("omp_target_associate_ptr", !failed && ok && here[11] == -11 && here[N - 1] == 2 * (N - 1) && !omp_target_is_present(here, device));

    void *mapped = NULL;
    #pragma omp target data map(tofrom : here[0 : N]) use_device_ptr(here)
    {
        mapped = here;
        #pragma omp target is_device_ptr(here)
        here[1] = 4711;
    }
    report("use_device_ptr", mapped && mapped != (void *)here && here[1] == 4711);

    /* Whatever the size and the order: what was written is read. */
    char *blocks[64];
    uint64_t state = 1;
    ok = 1;
    for (int round = 0; round < 3; round++) {
        size_t sizes[64];
        for (int i = 0; i < 64; i++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            sizes[i] = 1 + (state >> 40) % 300000;
            blocks[i] = omp_target_alloc(sizes[i], device);
            char last = (char)i;
            ok &= blocks[i] && !omp_target_memcpy(blocks[i], &last, 1, sizes[i] - 1, 0, device, host);
        }
        for (int i = 63; i >= 0; i--) {
            char last = -1;
            ok &= !omp_target_memcpy(&last, blocks[i], 1, 0, sizes[i] - 1, host, device) && last == (char)i;
            omp_target_free(blocks[i], device);
        }
    }
    report("many blocks of odd sizes", ok);
    omp_target_free(there, device);
    free(here);
}

static void several_devices(void) {
    const int count = omp_get_num_devices() < MOST_DEVICES ? omp_get_num_devices() : MOST_DEVICES;
    const int host = omp_get_initial_device();
    int ok = 1, first = 0;
    for (int d = 0; d < count; d++) {
        int value = 0;
        #pragma omp target device(d) map(from : value)
        value = counter += 10;
        if (d == 0) first = value; /* it has counted before */
        ok &= value == (d == 0 ? first : 50);
    }
    report("every device has its own globals", ok && first >= 50);

    int *shared = malloc(1000 * sizeof(int));
    for (int d = 0; d < count; d++) {
        for (int i = 0; i < 1000; i++) shared[i] = d;
        #pragma omp target enter data map(to : shared[0 : 1000]) device(d)
    }
    for (int d = count - 1; d >= 0; d--) {
        int sum = 0;
        #pragma omp target map(tofrom : sum) device(d)
        for (int i = 0; i < 1000; i++) sum += shared[i];
        ok &= sum == 1000 * d;
        #pragma omp target exit data map(delete : shared[0 : 1000]) device(d)
    }
    report("one array, one copy on each device", ok);

    ok = 1;
    for (int d = 0; d + 1 < count; d++) {
        int *one = omp_target_alloc(4000, d), *two = omp_target_alloc(4000, d + 1);
        for (int i = 0; i < 1000; i++) shared[i] = i + d;
        ok &= !omp_target_memcpy(one, shared, 4000, 0, 0, d, host) && !omp_target_memcpy(two, one, 4000, 0, 0, d + 1, d);
        memset(shared, 0, 4000);
        ok &= !omp_target_memcpy(shared, two, 4000, 0, 0, host, d + 1) && shared[999] == 999 + d;
        omp_target_free(one, d);
        omp_target_free(two, d + 1);
    }
    report("copy from device to device", ok);
    free(shared);
}

static void *thread(void *argument) {
    long me = (long)(intptr_t)argument;
    int device = (int)me % omp_get_num_devices();
    long ok = 1;
    for (long i = 0; i < 200; i++) {
        long value = me * 1000 + i, block[64];
        for (long k = 0; k < 64; k++) block[k] = value;
        #pragma omp target map(tofrom : value, block) device(device)
        {
            value *= 2;
            for (long k = 0; k < 64; k++) block[k] += k;
        }
        ok &= value == 2 * (me * 1000 + i) && block[63] == me * 1000 + i + 63;
    }
    return (void *)(intptr_t)ok;
}

static void host_threads(void) {
    double parts[8] = {0};
    #pragma omp parallel for num_threads(4)
    for (int t = 0; t < 8; t++) {
        double sum = 0;
        #pragma omp target map(tofrom : sum) firstprivate(t)
        for (int i = 0; i < 1000; i++) sum += t;
        parts[t] = sum;
    }
    int ok = 1;
    for (int t = 0; t < 8; t++) ok &= parts[t] == 1000.0 * t;
    report("regions from several OpenMP threads", ok);

    pthread_t threads[8];
    for (long t = 0; t < 8; t++) pthread_create(&threads[t], NULL, thread, (void *)(intptr_t)t);
    for (long t = 0; t < 8; t++) {
        void *result;
        pthread_join(threads[t], &result);
        ok &= result != NULL;
    }
    report("regions from several POSIX threads", ok);
}

static void output(void) {
    fflush(stdout);
    #pragma omp target
    printf("said on the device: %d\n", counter);
    int written = 0;
    #pragma omp target map(from : written)
    written = printf("said on the device in a line of its own\n");
    report("standard output of a device", written == 40);
}

int main(void) {
    if (omp_get_num_devices() == 0) {
        fprintf(stderr, "omp_features: there is no device\n");
        return 1;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    int device_number = -1;
    #pragma omp target map(from : device_number)
    device_number = (int)getpid();
    printf("%d devices; host process %d, process of the device %d\n", omp_get_num_devices(), (int)getpid(), device_number);

    double *a = malloc(N * sizeof *a), *b = malloc(N * sizeof *b);
    /* First of all, for devices that are the host itself: see the note on libomp above. */
    asynchronous();
    plain_regions();
    arguments();
    structures();
    data_environments(a, b);
    globals();
    a[17] = 123456;
    parallelism(a);
    memory_routines();
    several_devices();
    host_threads();
    output();
    free(a);
    free(b);
    printf(failures ? "%d FAILED\n" : "all features work\n", failures);
    return failures != 0;
}
