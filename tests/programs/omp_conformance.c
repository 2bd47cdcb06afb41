/* Device features of OpenMP 4.5, each for every device: one line for each, what came out in figures, so that two
 * runtimes can be compared line by line. Nothing in a line depends on the number of threads or teams that a runtime chooses.
 * Exit status: 0 if all is as the standard says, 1 otherwise. */
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

#pragma omp declare target
int global = 7;
int hidden[4] = {1, 2, 3, 4};
struct point { int x, y; };
struct point points[8];
static int square(int x) { return x * x; }
int on_host(void) { return omp_is_initial_device(); }
#pragma omp end declare target

int listed = 11;
static int cube(int x) { return x * x * x; }
#pragma omp declare target to(listed, cube)

int *linked_to;
int linked[N];
#pragma omp declare target link(linked)

static void regions(int d) {
    int x = 3, host = 1;
    #pragma omp target device(d) map(from : host)
    host = omp_is_initial_device();
    report(d, "target: runs on the device", host, 0);
    #pragma omp target device(d)
    x = 4;
    report(d, "target: scalars are firstprivate", x, 3);
    #pragma omp target device(d) defaultmap(tofrom : scalar)
    x = 4;
    report(d, "target: defaultmap(tofrom:scalar)", x, 4);
    int private = 5, first = 6, sum = 0;
    #pragma omp target device(d) private(private) firstprivate(first) map(from : sum)
    {
        private = 1;
        sum = private + first++;
    }
    report(d, "target: private, firstprivate", sum * 100 + private * 10 + first, 756);
    int a[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    #pragma omp target device(d)
    for (int i = 0; i < 8; i++) a[i] *= 2;
    report(d, "target: arrays are tofrom", a[0] + a[7], 18);
    int n = 6, vla[n];
    for (int i = 0; i < n; i++) vla[i] = i;
    #pragma omp target device(d)
    for (int i = 0; i < n; i++) vla[i] += n;
    report(d, "target: arrays of variable length", vla[0] + vla[5], 17);
    int off = 0;
    #pragma omp target device(d) if (target : off) map(from : host)
    host = omp_is_initial_device();
    report(d, "target: if(target:0)", host, 1);
    off = 1;
    #pragma omp target device(d) if (off) map(from : host)
    host = omp_is_initial_device();
    report(d, "target: if(1)", host, 0);
    const int constant = 9;
    int seen = 0;
    #pragma omp target device(d) map(from : seen)
    seen = constant;
    report(d, "target: constants", seen, 9);
    float f = 1.5f;
    double g = 2.25, result = 0;
    char c = 'c';
    short s = -3;
    long long l = 1ll << 40;
    _Bool b = 1;
    #pragma omp target device(d) map(from : result)
    result = f + g + c + s + (double)l + b;
    report(d, "target: scalars of all kinds", (long)(result * 4), (long)((1.5 + 2.25 + 'c' - 3 + 1) * 4 + (4.0 * (1ll << 40))));
}

static void map_types(int d) {
    int a[N], b[4] = {1, 2, 3, 4}, *p;
    for (int i = 0; i < N; i++) a[i] = i;
    #pragma omp target enter data map(to : a) device(d)
    a[5] = 100;
    int seen = 0;
    #pragma omp target map(tofrom : a) map(from : seen) device(d)
    seen = a[5];
    report(d, "map: present data is not copied", seen * 1000 + a[5], 5100);
    #pragma omp target map(always, to : a) map(from : seen) device(d)
    seen = a[5];
    report(d, "map(always,to)", seen, 100);
    #pragma omp target map(always, from : a) device(d)
    a[6] = 200;
    report(d, "map(always,from)", a[6], 200);
    #pragma omp target map(always, tofrom : a[0 : 8]) device(d)
    a[7] = a[6] + 1;
    report(d, "map(always,tofrom) of a section", a[7], 201);
    #pragma omp target enter data map(to : a) device(d)
    #pragma omp target exit data map(release : a) device(d)
    report(d, "map(release): counted", omp_target_is_present(a, d), 1);
    #pragma omp target enter data map(to : a) device(d)
    #pragma omp target exit data map(delete : a) device(d)
    report(d, "map(delete): gone whatever the count", omp_target_is_present(a, d), 0);
    #pragma omp target enter data map(alloc : b) device(d)
    #pragma omp target device(d)
    for (int i = 0; i < 4; i++) b[i] = 10 + i;
    #pragma omp target exit data map(from : b) device(d)
    report(d, "enter data alloc, exit data from", b[3], 13);
    p = malloc(N * sizeof *p);
    for (int i = 0; i < N; i++) p[i] = i;
    #pragma omp target data map(tofrom : p[100 : 50]) device(d)
    {
        #pragma omp target map(from : seen) device(d)
        {
            seen = p[100] + p[149];
            p[120] = -1;
        }
        #pragma omp target map(to : p[110 : 5]) map(tofrom : seen) device(d)
        seen += p[112];
    }
    report(d, "target data: section of a pointer", p[120], -1);
    int zero = 1;
    #pragma omp target map(p[0 : 0]) map(from : zero) device(d)
    zero = p == NULL;
    report(d, "map: section without length, not present", zero >= 0, 1);
    #pragma omp target data map(to : a) device(d) if (0)
    seen = omp_target_is_present(a, d);
    report(d, "target data: if(0)", seen, 0);
    #pragma omp target enter data map(to : a) device(d) if (0)
    report(d, "target enter data: if(0)", omp_target_is_present(a, d), 0);
    free(p);
}

struct inner { int n; int *data; };
struct outer { int id; struct inner in; double weight; int fixed[4]; };

static void structures(int d) {
    struct outer o = {1, {4, NULL}, 0.5, {1, 2, 3, 4}};
    int values[4] = {10, 20, 30, 40};
    o.in.data = values;
    #pragma omp target map(tofrom : o.id, o.weight) device(d)
    {
        o.id += 1;
        o.weight *= 4;
    }
    report(d, "structures: some members", o.id + (long)o.weight, 4);
    #pragma omp target map(tofrom : o) map(tofrom : o.in.data[0 : 4]) device(d)
    for (int i = 0; i < o.in.n; i++) o.in.data[i]++;
    report(d, "structures: a pointer in a nested one", values[0] + values[3], 52);
    report(d, "structures: the pointer is the host's again", o.in.data == values, 1);
    #pragma omp target map(tofrom : o.fixed[1 : 2]) device(d)
    o.fixed[1] = o.fixed[2] * 7;
    report(d, "structures: section of a member", o.fixed[1], 21);
    struct outer many[3];
    memset(many, 0, sizeof many);
    #pragma omp target map(tofrom : many[1 : 2]) device(d)
    many[2].fixed[3] = 5;
    report(d, "structures: section of an array of them", many[2].fixed[3], 5);
    struct outer *q = &o;
    #pragma omp target data map(tofrom : q[0 : 1]) map(tofrom : q->in.data[0 : 4]) device(d)
    {
        #pragma omp target device(d)
        {
            q->in.data[1] = 77;
            q->id = 9;
        }
    }
    report(d, "structures: through a pointer", values[1] * 10 + o.id, 779);
}

static void globals(int d) {
    int seen = 0;
    #pragma omp target device(d) map(from : seen)
    seen = square(3) + cube(2) + hidden[3] + on_host();
    report(d, "declare target: functions and data", seen, 21);
    #pragma omp target device(d)
    global += 1;
    #pragma omp target update from(global) device(d)
    report(d, "declare target: a global stays", global, 8);
    global = 7;
    #pragma omp target update to(global) device(d)
    #pragma omp target device(d) map(from : seen)
    seen = global;
    report(d, "declare target: update of a global", seen, 7);
    listed = 12;
    #pragma omp target update to(listed) device(d)
    #pragma omp target device(d) map(from : seen)
    seen = listed;
    report(d, "declare target to(list)", seen, 12);
    listed = 11;
    for (int i = 0; i < N; i++) linked[i] = i;
    #pragma omp target map(tofrom : linked) device(d)
    for (int i = 0; i < N; i++) linked[i] += 1;
    report(d, "declare target link", linked[N - 1], N);
    #pragma omp target device(d)
    points[3].y = 4;
    #pragma omp target update from(points[3 : 1]) device(d)
    report(d, "declare target: update of a section", points[3].y, 4);
    #pragma omp target device(d)
    {
        static int calls = 0;
        calls++;
        hidden[0] = calls;
    }
    #pragma omp target update from(hidden) device(d)
    report(d, "static variable in a region", hidden[0], 1);
    hidden[0] = 1;
}

static void updates(int d) {
    int a[N];
    for (int i = 0; i < N; i++) a[i] = i;
    #pragma omp target data map(to : a) device(d)
    {
        for (int i = 0; i < N; i++) a[i] = -i;
        #pragma omp target update to(a[0 : 10]) device(d)
        #pragma omp target device(d)
        for (int i = 0; i < N; i++) a[i] *= 2;
        #pragma omp target update from(a[5 : 10]) device(d)
        #pragma omp target update from(a[900 : 1]) device(d) if (0)
    }
    report(d, "update: sections, if(0)", a[5] + a[12] + a[15] + a[900], -10 + 24 - 15 - 900);
    int absent[4] = {1, 2, 3, 4};
    #pragma omp target update to(absent) device(d)
    report(d, "update: of what is not present does nothing", absent[3], 4);
}

static void pointers(int d) {
    int a[N], host = omp_get_initial_device();
    for (int i = 0; i < N; i++) a[i] = i;
    int seen = 0, *q = a;
    #pragma omp target data map(to : a) use_device_ptr(q) device(d)
    {
        #pragma omp target is_device_ptr(q) map(from : seen) device(d)
        seen = q[N - 1];
    }
    report(d, "use_device_ptr, is_device_ptr", seen, N - 1);
    int *m = omp_target_alloc(N * sizeof *m, d);
    report(d, "omp_target_alloc", m != NULL, 1);
    int failed = omp_target_memcpy(m, a, N * sizeof *m, 0, 0, d, host);
    #pragma omp target is_device_ptr(m) device(d)
    for (int i = 0; i < N; i++) m[i] += 1;
    int back[N];
    failed |= omp_target_memcpy(back, m, 100 * sizeof *m, 4 * sizeof *m, 8 * sizeof *m, host, d);
    report(d, "omp_target_memcpy with offsets", failed * 1000 + back[4] + back[103], 9 + 108);
    int grid[8][16], part[8][16];
    for (int i = 0; i < 8 * 16; i++) grid[i / 16][i % 16] = i;
    memset(part, 0, sizeof part);
    size_t volume[2] = {3, 5}, to[2] = {1, 2}, from[2] = {2, 4}, size[2] = {8, 16};
    failed = omp_target_memcpy_rect(m, grid, sizeof(int), 2, volume, to, from, size, size, d, host);
    failed |= omp_target_memcpy_rect(part, m, sizeof(int), 2, volume, from, to, size, size, host, d);
    report(d, "omp_target_memcpy_rect there and back", failed * 1000 + part[2][4] + part[4][8], 36 + 72);
    int most = omp_target_memcpy_rect(NULL, NULL, sizeof(int), 0, NULL, NULL, NULL, NULL, NULL, d, host);
    report(d, "omp_target_memcpy_rect: dimensions", most >= 3, 1);
    failed = omp_target_associate_ptr(back, m, sizeof back, 0, d);
    report(d, "omp_target_associate_ptr", failed * 10 + omp_target_is_present(back, d), 1);
    #pragma omp target map(alloc : back) device(d)
    back[0] = 4242;
    failed = omp_target_memcpy(&seen, m, sizeof seen, 0, 0, host, d);
    report(d, "associated memory is used", failed * 100000 + seen, 4242);
    #pragma omp target update from(back[0 : 1]) device(d)
    report(d, "associated memory is updated", back[0], 4242);
    failed = omp_target_disassociate_ptr(back, d);
    report(d, "omp_target_disassociate_ptr", failed * 10 + omp_target_is_present(back, d), 0);
    omp_target_free(m, d);
    omp_target_free(NULL, d);
    int *h = omp_target_alloc(16, host);
    report(d, "omp_target_alloc on the host", h != NULL, 1);
    omp_target_free(h, host);
}

static void tasks(int d) {
    int a = 1, b = 2, c = 0, x[4] = {0};
    #pragma omp target device(d) nowait map(tofrom : a) depend(out : a)
    a += 10;
    #pragma omp target device(d) nowait map(tofrom : b) depend(out : b)
    b += 20;
    #pragma omp target device(d) nowait map(to : a, b) map(from : c) depend(in : a, b) depend(out : c)
    c = a * b;
    #pragma omp task depend(in : c) shared(c)
    c += 1;
    #pragma omp taskwait
    report(d, "nowait, depend", c, 11 * 22 + 1);
    #pragma omp target enter data map(to : x) device(d) nowait depend(out : x)
    #pragma omp target device(d) nowait depend(inout : x)
    x[0] = 3;
    #pragma omp target update from(x) device(d) nowait depend(inout : x)
    #pragma omp target exit data map(release : x) device(d) nowait depend(inout : x)
    #pragma omp taskwait
    report(d, "nowait, depend of data directives", x[0] * 10 + omp_target_is_present(x, d), 30);
    int sum = 0;
    for (int i = 0; i < 20; i++) {
        #pragma omp target device(d) nowait map(tofrom : sum) depend(inout : sum) firstprivate(i)
        sum = sum * 3 + i;
    }
    #pragma omp taskwait
    int expected = 0;
    for (int i = 0; i < 20; i++) expected = (int)((unsigned)expected * 3u + (unsigned)i);
    report(d, "nowait: a long chain keeps its order", sum, expected);
}

static void parallel(int d) {
    int a[N], count = 0, most = -1, least = N;
    long sum = 0;
    #pragma omp target teams distribute parallel for device(d) map(from : a)
    for (int i = 0; i < N; i++) a[i] = square(i);
    for (int i = 0; i < N; i++) sum += a[i];
    report(d, "target teams distribute parallel for", sum, 357389824);
    #pragma omp target teams distribute device(d) map(tofrom : a) num_teams(4)
    for (int i = 0; i < N; i += 4)
        for (int j = 0; j < 4; j++) a[i + j] = j;
    report(d, "target teams distribute", a[N - 1] + a[N - 4], 3);
    #pragma omp target parallel for device(d) map(tofrom : count) reduction(+ : count)
    for (int i = 0; i < N; i++) count += i & 1;
    report(d, "target parallel for: reduction(+)", count, N / 2);
    #pragma omp target parallel for device(d) map(tofrom : most, least) reduction(max : most) reduction(min : least)
    for (int i = 0; i < N; i++) {
        int value = (i * 37) % N;
        if (value > most) most = value;
        if (value < least) least = value;
    }
    report(d, "reduction(max), reduction(min)", most * 10 + least, (N - 1) * 10);
    unsigned all = ~0u, any = 0, odd = 0;
    int both = 1, either = 0;
    #pragma omp target parallel for device(d) map(tofrom : all, any, odd, both, either) \
        reduction(& : all) reduction(| : any) reduction(^ : odd) reduction(&& : both) reduction(|| : either)
    for (int i = 1; i < 16; i++) {
        all &= (unsigned)i | 0x100;
        any |= (unsigned)i;
        odd ^= (unsigned)i;
        both = both && i;
        either = either || i == 7;
    }
    report(d, "reductions: bits and logic", (long)(all + any * 2 + odd + (unsigned)both + (unsigned)either), 0x100 + 30 + 2);
    double product = 1;
    #pragma omp target parallel for simd device(d) map(tofrom : product) reduction(* : product)
    for (int i = 1; i <= 10; i++) product *= i;
    report(d, "target parallel for simd: reduction(*)", (long)product, 3628800);
    #pragma omp target simd device(d) map(tofrom : a) safelen(8)
    for (int i = 0; i < N; i++) a[i] = i + 1;
    report(d, "target simd", a[N - 1], N);
    count = 0;
    #pragma omp target parallel for device(d) map(tofrom : count) schedule(dynamic, 3)
    for (int i = 0; i < N; i++) {
        #pragma omp atomic
        count += 2;
    }
    report(d, "atomic, schedule(dynamic)", count, 2 * N);
    count = 0;
    #pragma omp target parallel for device(d) map(tofrom : count) schedule(guided)
    for (int i = 0; i < N; i++) {
        #pragma omp critical(one)
        count = count * 1 + 3;
    }
    report(d, "critical, schedule(guided)", count, 3 * N);
    int order[16], at = 0;
    #pragma omp target parallel for ordered device(d) map(tofrom : order, at)
    for (int i = 0; i < 16; i++) {
        #pragma omp ordered
        order[at++] = i;
    }
    report(d, "ordered", order[15] + at, 31);
    int last = 0;
    #pragma omp target parallel for lastprivate(last) device(d) map(tofrom : last)
    for (int i = 0; i < N; i++) last = i;
    report(d, "lastprivate", last, N - 1);
    int square2[8][8];
    #pragma omp target teams distribute parallel for collapse(2) device(d) map(from : square2)
    for (int i = 0; i < 8; i++)
        for (int j = 0; j < 8; j++) square2[i][j] = i * 8 + j;
    report(d, "collapse(2)", square2[7][7], 63);
    int single = 0, master = 0, sections = 0;
    #pragma omp target parallel device(d) map(tofrom : single, master, sections)
    {
        #pragma omp single
        single++;
        #pragma omp master
        master++;
        #pragma omp barrier
        #pragma omp sections reduction(+ : sections)
        {
            sections += 1;
            #pragma omp section
            sections += 10;
        }
    }
    report(d, "single, master, sections", single + master + sections, 13);
    int threads = 0, teams = 0, level = -1, number = -1;
    #pragma omp target device(d) map(from : threads, teams, level, number)
    {
        threads = omp_get_num_threads();
        teams = omp_get_num_teams();
        level = omp_get_level();
        number = omp_get_thread_num() + omp_get_team_num();
    }
    report(d, "omp_get_*: in a region without a team", threads * 1000 + teams * 100 + level * 10 + number, 1100);
    int in = 0;
    #pragma omp target parallel device(d) num_threads(1) map(tofrom : in)
    in += omp_in_parallel() * 10 + omp_get_num_threads();
    report(d, "num_threads(1)", in >= 1 && in <= 11, 1);
    void *memory = NULL;
    #pragma omp target device(d) map(tofrom : memory)
    {
        int *p = malloc(64);
        p[0] = 5;
        memory = p;
    }
    int kept = 0;
    #pragma omp target device(d) map(to : memory) map(from : kept)
    {
        kept = *(int *)memory;
        free(memory);
    }
    report(d, "memory of the device's own stays", kept, 5);
    fflush(stdout);
    #pragma omp target device(d)
    printf("printed in a region\n");
}

int main(void) {
    int devices = omp_get_num_devices();
    if (devices == 0) return 2;
    setvbuf(stdout, NULL, _IOLBF, 0);
    report(-1, "omp_get_initial_device", omp_get_initial_device(), devices);
    report(-1, "omp_is_initial_device", omp_is_initial_device(), 1);
    for (int d = 0; d < devices; d++) {
        omp_set_default_device(d);
        report(d, "omp_get_default_device", omp_get_default_device() == d, 1);
        regions(d);
        map_types(d);
        structures(d);
        globals(d);
        updates(d);
        pointers(d);
        tasks(d);
        parallel(d);
    }
    int on[2] = {0, 0}, other = devices > 1;
    for (int i = 0; i < 2; i++) {
        #pragma omp target device(i * other) map(from : on[i])
        on[i] = 1 + i;
    }
    report(-1, "two devices in turn", on[0] + on[1] * 10, 21);
    return failures != 0;
}
