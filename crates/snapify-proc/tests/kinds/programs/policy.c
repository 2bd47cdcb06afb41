// Memory policies (set_mempolicy(2)), of which each thread has its own.
#include "check.h"

enum { DEFAULT, PREFERRED, BIND, INTERLEAVE, LOCAL };
#define STATIC_NODES (1 << 15)

static long set(int mode, unsigned long nodes) {
    return syscall(SYS_set_mempolicy, mode, nodes ? &nodes : 0, 64);
}

static void expect(int mode, unsigned long nodes) {
    int have = -1;
    unsigned long mask[16] = {0};
    EQUAL(syscall(SYS_get_mempolicy, &have, mask, 1024, 0, 0), 0);
    EQUAL(have, mode);
    EQUAL(mask[0], nodes);
}

static pthread_barrier_t ready, go;

static void *other(void *unused) {
    (void)unused;
    EQUAL(set(BIND | STATIC_NODES, 1), 0);
    pthread_barrier_wait(&ready);
    pthread_barrier_wait(&go);
    expect(BIND | STATIC_NODES, 1);
    return 0;
}

static void *plain(void *unused) {
    (void)unused;
    EQUAL(set(DEFAULT, 0), 0);
    pthread_barrier_wait(&ready);
    pthread_barrier_wait(&go);
    expect(DEFAULT, 0);
    return 0;
}

int main(void) {
    pthread_barrier_init(&ready, 0, 3);
    pthread_barrier_init(&go, 0, 3);
    if (set(INTERLEAVE, 1) && errno == ENOSYS) {
        printf("not here: a kernel without NUMA\n");
        return 0;
    }
    pthread_t threads[2];
    pthread_create(&threads[0], 0, other, 0);
    pthread_create(&threads[1], 0, plain, 0);
    pthread_barrier_wait(&ready);
    pause_here();
    expect(INTERLEAVE, 1);
    pthread_barrier_wait(&go);
    pthread_join(threads[0], 0);
    pthread_join(threads[1], 0);
    EQUAL(set(LOCAL, 0), 0);
    expect(LOCAL, 0);
    return finish();
}
