/* The combined device constructs of OpenMP 4.5 with each of their clauses, for every device: one line for each, what came out
 * in figures, so that two runtimes can be compared line by line. Nothing in a line depends on the number of threads or teams
 * that a runtime chooses. Exit status: 0 if all is as the standard says, 1 otherwise. */
#include <math.h>
#include <omp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N 1024

static int failures;

static void report(int device, const char *feature, long got, long expected) {
    printf("device %d: %-52s %ld%s\n", device, feature, got, got == expected ? "" : " WRONG");
    failures += got != expected;
}

static long sum_of(const int *a) {
    long sum = 0;
    for (int i = 0; i < N; i++) sum += a[i];
    return sum;
}

#pragma omp declare target
int table[N];
static int twice(int x) { return 2 * x; }
#pragma omp declare simd
static int thrice(int x) { return 3 * x; }
#pragma omp end declare target

static void reductions(int d) {
    int a[N], count = 0, most = -1, least = N, both = 1, either = 0;
    unsigned all = ~0u, any = 0, odd = 0;
    double product = 1;
    long down = 0;
    for (int i = 0; i < N; i++) a[i] = i * 37 % N;
    #pragma omp target teams distribute device(d) map(to : a) map(tofrom : count) reduction(+ : count)
    for (int i = 0; i < N; i++) count += a[i];
    report(d, "teams distribute: reduction(+)", count, N * (N - 1) / 2);
    #pragma omp target teams distribute device(d) map(to : a) map(tofrom : down) reduction(- : down)
    for (int i = 0; i < N; i++) down -= a[i];
    report(d, "teams distribute: reduction(-)", down, -N * (N - 1l) / 2);
    #pragma omp target teams distribute device(d) map(to : a) map(tofrom : most, least) \
        reduction(max : most) reduction(min : least)
    for (int i = 0; i < N; i++) {
        if (a[i] > most) most = a[i];
        if (a[i] < least) least = a[i];
    }
    report(d, "teams distribute: reduction(max), reduction(min)", most * 10 + least, (N - 1) * 10);
    #pragma omp target teams distribute device(d) map(tofrom : all, any, odd) \
        reduction(& : all) reduction(| : any) reduction(^ : odd)
    for (int i = 1; i < 32; i++) {
        all &= (unsigned)i | 0x40;
        any |= (unsigned)i;
        odd ^= (unsigned)i;
    }
    report(d, "teams distribute: reductions of bits", (long)(all + any + odd), 0x40 + 31);
    #pragma omp target teams distribute device(d) map(tofrom : both, either) reduction(&& : both) reduction(|| : either)
    for (int i = 0; i < N; i++) {
        both = both && i < N;
        either = either || i == N;
    }
    report(d, "teams distribute: reductions of logic", both * 10 + either, 10);
    #pragma omp target teams distribute device(d) map(tofrom : product) reduction(* : product)
    for (int i = 1; i <= 12; i++) product *= i;
    report(d, "teams distribute: reduction(*)", (long)product, 479001600);
    count = most = 0;
    #pragma omp target teams distribute parallel for device(d) map(to : a) map(tofrom : count, most) \
        reduction(+ : count) reduction(max : most)
    for (int i = 0; i < N; i++) {
        count += a[i];
        if (a[i] > most) most = a[i];
    }
    report(d, "teams distribute parallel for: two reductions", count + most, N * (N - 1) / 2 + N - 1);
    count = 0;
    #pragma omp target teams distribute parallel for simd device(d) map(to : a) map(tofrom : count) reduction(+ : count)
    for (int i = 0; i < N; i++) count += a[i];
    report(d, "teams distribute parallel for simd: reduction", count, N * (N - 1) / 2);
    count = 0;
    #pragma omp target map(to : a) map(tofrom : count) device(d)
    #pragma omp teams reduction(+ : count)
    #pragma omp distribute parallel for reduction(+ : count)
    for (int i = 0; i < N; i++) count += a[i];
    report(d, "separate directives: reduction in both", count, N * (N - 1) / 2);
    int each[4] = {0};
    #pragma omp target parallel for device(d) map(tofrom : each) reduction(+ : each)
    for (int i = 0; i < N; i++) each[i % 4] += i;
    report(d, "reduction of an array", each[3] - each[0], 3 * N / 4);
}

static void clauses(int d) {
    int a[N], b[N], host = 1, shared = 5, private = 6, first = 7, last = 0;
    memset(a, 0, sizeof a);
    for (int i = 0; i < N; i++) b[i] = i;
    #pragma omp target teams distribute device(d) map(from : a) map(to : b) default(none) shared(a, b)
    for (int i = 0; i < N; i++) a[i] = b[i] + 1;
    report(d, "teams distribute: default(none)", sum_of(a), N * (N + 1l) / 2);
    #pragma omp target teams distribute device(d) map(tofrom : shared) default(shared) num_teams(1) thread_limit(1)
    for (int i = 0; i < N; i++) {
        #pragma omp atomic
        shared += 1;
    }
    report(d, "teams distribute: default(shared), one team", shared, 5 + N);
    #pragma omp target teams distribute device(d) map(from : a) private(private) firstprivate(first)
    for (int i = 0; i < N; i++) {
        private = i;
        a[i] = private + first;
    }
    report(d, "teams distribute: private, firstprivate", sum_of(a) + private, N * (N - 1l) / 2 + 7 * N + 6);
    #pragma omp target teams distribute device(d) map(tofrom : last) lastprivate(last)
    for (int i = 0; i < N; i++) last = i;
    report(d, "teams distribute: lastprivate", last, N - 1);
    #pragma omp target teams distribute device(d) map(from : a) dist_schedule(static, 7)
    for (int i = 0; i < N; i++) a[i] = i;
    report(d, "teams distribute: dist_schedule", sum_of(a), N * (N - 1l) / 2);
    int grid[8][8][8];
    #pragma omp target teams distribute device(d) map(from : grid) collapse(3)
    for (int i = 0; i < 8; i++)
        for (int j = 0; j < 8; j++)
            for (int k = 0; k < 8; k++) grid[i][j][k] = i * 100 + j * 10 + k;
    report(d, "teams distribute: collapse(3)", grid[7][6][5], 765);
    #pragma omp target teams distribute device(d) defaultmap(tofrom : scalar) num_teams(1)
    for (int i = 0; i < N; i++) {
        if (i == 9) last = 99;
    }
    report(d, "teams distribute: defaultmap", last, 99);
    const int off = 0;
    #pragma omp target teams distribute if (off) device(d) map(tofrom : host)
    for (int i = 0; i < 1; i++) host = omp_is_initial_device();
    report(d, "teams distribute: if(0)", host, 1);
    int teams = 0, threads = 0;
    #pragma omp target teams device(d) num_teams(3) thread_limit(2) map(tofrom : teams, threads)
    {
        if (omp_get_team_num() == 0) {
            teams = omp_get_num_teams();
            #pragma omp parallel
            {
                #pragma omp master
                threads = omp_get_num_threads();
            }
        }
    }
    report(d, "teams: num_teams, thread_limit are upper bounds", teams >= 1 && teams <= 3 && threads >= 1 && threads <= 2, 1);
    int seen[16] = {0};
    #pragma omp target teams device(d) num_teams(4) map(tofrom : seen)
    {
        #pragma omp atomic
        seen[omp_get_team_num()] += 1;
    }
    int once = 1;
    for (int i = 0; i < 16; i++) once = once && seen[i] <= 1;
    report(d, "teams: each team runs the region once", once && seen[0], 1);
    #pragma omp target parallel for device(d) map(tofrom : a) schedule(static, 5) num_threads(3) proc_bind(close)
    for (int i = 0; i < N; i++) a[i] = twice(i);
    report(d, "parallel for: schedule, num_threads, proc_bind", sum_of(a), N * (N - 1l));
    #pragma omp target teams distribute parallel for device(d) map(from : a) schedule(dynamic, 4) dist_schedule(static)
    for (int i = 0; i < N; i++) a[i] = i;
    report(d, "teams distribute parallel for: both schedules", sum_of(a), N * (N - 1l) / 2);
    #pragma omp target teams distribute parallel for device(d) map(from : a) firstprivate(first) lastprivate(last) \
        default(none) shared(a)
    for (int i = 0; i < N; i++) {
        last = i + first;
        a[i] = last;
    }
    report(d, "teams distribute parallel for: sharing", sum_of(a), N * (N - 1l) / 2 + 7 * N);
}

static void simd(int d) {
    int a[N], b[N], last = 0;
    for (int i = 0; i < N; i++) b[i] = i;
    #pragma omp target teams distribute simd device(d) map(from : a) map(to : b) simdlen(8)
    for (int i = 0; i < N; i++) a[i] = b[i] * 2;
    report(d, "teams distribute simd: simdlen", sum_of(a), N * (N - 1l));
    #pragma omp target simd device(d) map(tofrom : a) aligned(b : 4) simdlen(4)
    for (int i = 0; i < N; i++) a[i] = thrice(i);
    report(d, "simd: a declare simd function", sum_of(a), 3 * N * (N - 1l) / 2);
    int grid[16][16];
    #pragma omp target simd device(d) map(from : grid) collapse(2) lastprivate(last)
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < 16; j++) {
            last = i + j;
            grid[i][j] = last;
        }
    report(d, "simd: collapse(2)", grid[15][15], 30);
    int at = 0;
    #pragma omp target simd device(d) map(tofrom : a) linear(at : 2) private(last)
    for (int i = 0; i < N / 2; i++) {
        last = at;
        a[last] = -1;
        at += 2;
    }
    report(d, "simd: linear", a[0] + a[N - 2] + a[N - 1], 3 * (N - 1) - 2);
    #pragma omp target teams distribute parallel for simd device(d) map(from : a) collapse(2) schedule(static) safelen(4)
    for (int i = 0; i < N / 16; i++)
        for (int j = 0; j < 16; j++) a[i * 16 + j] = i + j;
    report(d, "teams distribute parallel for simd: collapse", a[N - 1], N / 16 - 1 + 15);
    #pragma omp target parallel device(d) map(from : a)
    {
        #pragma omp for simd
        for (int i = 0; i < N; i++) a[i] = i;
    }
    report(d, "for simd within parallel", sum_of(a), N * (N - 1l) / 2);
}

struct node { int value; struct node *next; };
struct vector { long length; double *data; struct { int kind; int *marks; } extra; };

static void deep(int d) {
    /* A list whose elements are attached one after the other: pointers on the device are those of the device. */
    struct node list[4];
    for (int i = 0; i < 4; i++) list[i] = (struct node){i + 1, i < 3 ? &list[i + 1] : NULL};
    int total = 0;
    #pragma omp target data map(tofrom : list) device(d)
    {
        #pragma omp target device(d)
        for (int i = 0; i < 3; i++) list[i].next = &list[i + 1];
        #pragma omp target map(from : total) device(d)
        {
            total = 0;
            for (struct node *at = list; at; at = at->next) total += at->value;
        }
    }
    report(d, "deep: a list on the device", total, 10);
    double values[N];
    struct vector v = {N, values, {2, NULL}};
    for (int i = 0; i < N; i++) values[i] = i;
    #pragma omp target enter data map(to : v) map(to : v.data[0 : N]) device(d)
    #pragma omp target teams distribute parallel for device(d) map(v)
    for (int i = 0; i < N; i++) v.data[i] = sqrt(v.data[i] * v.data[i]) + floor(0.5) + fabs(-1.0);
    #pragma omp target update from(v.data[0 : N]) device(d)
    #pragma omp target exit data map(release : v.data[0 : N]) map(release : v) device(d)
    report(d, "deep: enter data of a member, update, mathematics", (long)values[N - 1] + (v.data == values), N + 1);
    int *p = malloc(N * sizeof *p), *q = malloc(N * sizeof *q);
    for (int i = 0; i < N; i++) p[i] = i, q[i] = -i;
    int seen = 0;
    #pragma omp target data map(tofrom : p[0 : N], q[0 : N]) device(d)
    {
        int *swap = p;
        p = q;
        q = swap;
        #pragma omp target map(from : seen) device(d)
        {
            seen = p[1] * 100 + q[2];
            p[3] = 33;
        }
        swap = p;
        p = q;
        q = swap;
    }
    report(d, "data: pointers exchanged meanwhile", seen + q[3], -100 + 2 + 33);
    #pragma omp target data map(to : p[0 : N]) device(d)
    {
        int *inside = p + 10;
        #pragma omp target map(inside[0 : 0]) map(from : seen) device(d)
        seen = inside[5];
    }
    report(d, "data: section without length finds the object", seen, 15);
    #pragma omp target data map(tofrom : p[0 : N]) use_device_ptr(p) device(d)
    {
        #pragma omp target teams distribute parallel for is_device_ptr(p) device(d)
        for (int i = 0; i < N; i++) p[i] += 5;
    }
    report(d, "is_device_ptr: in a combined construct", p[N - 1], N + 4);
    #pragma omp target data map(from : q[0 : N]) map(to : p[0 : N]) device(d)
    #pragma omp target data map(alloc : q[0 : N]) device(d)
    {
        #pragma omp target device(d)
        for (int i = 0; i < N; i++) q[i] = p[i];
    }
    report(d, "data: environments in each other", q[0] + q[N - 1], N + 9);
    #pragma omp target device(d)
    for (int i = 0; i < N; i++) table[i] = i;
    #pragma omp target teams distribute parallel for device(d)
    for (int i = 0; i < N; i++) table[i] += 1;
    memset(table, 0, sizeof table);
    #pragma omp target update from(table[10 : 20]) device(d)
    report(d, "declare target: an array, in teams", table[9] + table[10] + table[29] + table[30], 41);
    free(p);
    free(q);
}

static void ordered(int d) {
    int a[N], b[N], c[N];
    memset(a, 0, sizeof a);
    #pragma omp target data map(alloc : a, b, c) device(d)
    {
        #pragma omp target teams distribute parallel for device(d) nowait depend(out : a)
        for (int i = 0; i < N; i++) a[i] = i;
        #pragma omp target teams distribute parallel for device(d) nowait depend(in : a) depend(out : b[0 : N])
        for (int i = 0; i < N; i++) b[i] = a[i] + 1;
        #pragma omp target teams distribute device(d) nowait depend(in : a) depend(out : c[0 : N])
        for (int i = 0; i < N; i++) c[i] = a[i] + 2;
        #pragma omp target parallel for device(d) nowait depend(in : b[0 : N], c[0 : N]) depend(inout : a)
        for (int i = 0; i < N; i++) a[i] = b[i] + c[i];
        #pragma omp target update from(a) device(d) nowait depend(inout : a)
        #pragma omp taskwait
    }
    report(d, "depend: combined constructs and sections", sum_of(a), N * (N - 1l) + 3 * N);
    int x = 0, y = 0;
    #pragma omp task shared(x) depend(out : x)
    {
        #pragma omp target map(tofrom : x) device(d)
        x += 1;
    }
    #pragma omp task shared(x, y) depend(in : x) depend(out : y)
    {
        #pragma omp target map(to : x) map(from : y) device(d)
        y = x + 1;
    }
    #pragma omp taskwait
    report(d, "target within tasks", y, 2);
    int parts[4];
    #pragma omp parallel sections num_threads(2)
    {
        #pragma omp section
        {
            #pragma omp target map(from : parts[0 : 2]) device(d)
            parts[0] = 1, parts[1] = 2;
        }
        #pragma omp section
        {
            #pragma omp target map(from : parts[2 : 2]) device(d)
            parts[2] = 3, parts[3] = 4;
        }
    }
    report(d, "target within sections", parts[0] + parts[1] + parts[2] + parts[3], 10);
    int counts[8] = {0};
    #pragma omp parallel for num_threads(4)
    for (int i = 0; i < 8; i++) {
        #pragma omp target teams distribute parallel for map(tofrom : counts[i : 1]) device(d)
        for (int j = 0; j < 100; j++) {
            #pragma omp atomic
            counts[i] += 1;
        }
    }
    long all = 0;
    for (int i = 0; i < 8; i++) all += counts[i];
    report(d, "target within a parallel loop of the host", all, 800);
    long value = 0, old = 0;
    #pragma omp target parallel for device(d) map(tofrom : value, old)
    for (int i = 0; i < N; i++) {
        long before;
        #pragma omp atomic capture
        before = value++;
        if (before == N - 1) {
            #pragma omp atomic write
            old = before;
        }
    }
    report(d, "atomic: capture, write", value + old, 2 * N - 1);
    int lock_count = 0;
    #pragma omp target parallel device(d) map(tofrom : lock_count) num_threads(4)
    {
        #pragma omp critical
        lock_count += 1;
        #pragma omp barrier
        #pragma omp single
        lock_count = lock_count > 0 ? 1 : 0;
    }
    report(d, "parallel: critical, barrier, single", lock_count, 1);
}

int main(void) {
    int devices = omp_get_num_devices();
    if (devices == 0) return 2;
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (int d = 0; d < devices; d++) {
        reductions(d);
        clauses(d);
        simd(d);
        deep(d);
        ordered(d);
    }
    return failures != 0;
}
