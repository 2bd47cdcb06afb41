// Threads that wait for futexes in every way, and locks whose owner the kernel knows.
#include "check.h"
#include <linux/futex.h>

enum { PRIVATE, SHARED, BITSET, ABSOLUTE, PI, REQUEUE_PI, REQUEUED, WAITV, MUTEX, ROBUST, WAITERS };

struct words {
    uint32_t word[WAITERS];
    uint32_t target, pi_target, never;
};

static struct words *words;
static pthread_t threads[WAITERS];
static volatile pid_t ids[WAITERS];
static pthread_barrier_t barrier;
static pthread_mutex_t inheriting, robust;

static long futex(uint32_t *word, int operation, uint32_t value, void *time, uint32_t *other, uint32_t more) {
    return syscall(SYS_futex, word, operation, value, time, other, more);
}

static void *waiter(void *number) {
    int n = (int)(long)number;
    uint32_t *word = &words->word[n];
    long result = 0;
    struct timespec far;
    clock_gettime(CLOCK_MONOTONIC, &far);
    far.tv_sec += 1000;
    struct { uint64_t value, address; uint32_t flags, reserved; } many[2] = {
        {0, (uintptr_t)word, 2 | FUTEX_PRIVATE_FLAG, 0},
        {0, (uintptr_t)&words->never, 2 | FUTEX_PRIVATE_FLAG, 0},
    };
    ids[n] = syscall(SYS_gettid);
    pthread_barrier_wait(&barrier);
    switch (n) {
    case PRIVATE: result = futex(word, FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0); break;
    case SHARED: result = futex(word, FUTEX_WAIT, 0, NULL, NULL, 0); break;
    case BITSET: result = futex(word, FUTEX_WAIT_BITSET_PRIVATE, 0, NULL, NULL, 0x10); break;
    case ABSOLUTE: result = futex(word, FUTEX_WAIT_BITSET_PRIVATE, 0, &far, NULL, FUTEX_BITSET_MATCH_ANY); break;
    case PI: result = futex(word, FUTEX_LOCK_PI_PRIVATE, 0, NULL, NULL, 0); break;
    case REQUEUE_PI: result = futex(word, FUTEX_WAIT_REQUEUE_PI_PRIVATE, 0, NULL, &words->pi_target, 0); break;
    case REQUEUED: result = futex(word, FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0); break;
    case WAITV: result = syscall(449, many, 2, 0, NULL, CLOCK_MONOTONIC); break;
    case MUTEX: result = pthread_mutex_lock(&inheriting); break;
    case ROBUST: result = pthread_mutex_lock(&robust); break;
    }
    if (n == ROBUST) {
        EQUAL(result, EOWNERDEAD);
    } else {
        EQUAL(result, 0);
    }
    if (n == PI) EQUAL(*word & FUTEX_TID_MASK, ids[n]);
    if (n == REQUEUE_PI) EQUAL(words->pi_target & FUTEX_TID_MASK, ids[n]);
    if (n == MUTEX) EQUAL(pthread_mutex_unlock(&inheriting), 0);
    return NULL;
}

static pthread_barrier_t leave;
static void *owner(void *unused) {
    pthread_mutex_lock(&robust);
    pthread_barrier_wait(&leave);
    pthread_barrier_wait(&leave);
    return unused;  // with the lock
}

static int sleeps(pid_t id) {
    char path[64], text[512];
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", id);
    FILE *file = fopen(path, "r");
    size_t n = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[n] = 0;
    char *end = strrchr(text, ')');
    return end && end[2] == 'S';
}

static void init(pthread_mutex_t *mutex, int protocol, int robustness) {
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setprotocol(&attributes, protocol);
    pthread_mutexattr_setrobust(&attributes, robustness);
    pthread_mutex_init(mutex, &attributes);
}

int main(void) {
    words = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t us = syscall(SYS_gettid);
    words->word[PI] = us;
    init(&inheriting, PTHREAD_PRIO_INHERIT, PTHREAD_MUTEX_STALLED);
    init(&robust, PTHREAD_PRIO_NONE, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_lock(&inheriting);
    pthread_t robust_owner;
    pthread_barrier_init(&leave, NULL, 2);
    pthread_create(&robust_owner, NULL, owner, NULL);
    pthread_barrier_wait(&leave);
    pthread_barrier_init(&barrier, NULL, WAITERS + 1);
    for (long i = 0; i < WAITERS; i++) pthread_create(&threads[i], NULL, waiter, (void *)i);
    pthread_barrier_wait(&barrier);
    for (int i = 0; i < WAITERS; i++)
        while (!sleeps(ids[i])) sched_yield();
    EQUAL(futex(&words->word[REQUEUED], FUTEX_REQUEUE_PRIVATE, 0, (void *)1, &words->target, 0), 1);
    pause_here();

    struct timespec step = {0, 1000000};
    // A waiter may have to wait anew first, after a restart.
    while (futex(&words->word[PRIVATE], FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0) != 1) nanosleep(&step, NULL);
    while (futex(&words->word[SHARED], FUTEX_WAKE, 1, NULL, NULL, 0) != 1) nanosleep(&step, NULL);
    EQUAL(futex(&words->word[BITSET], FUTEX_WAKE_BITSET_PRIVATE, 1, NULL, NULL, 0x20), 0);
    while (futex(&words->word[BITSET], FUTEX_WAKE_BITSET_PRIVATE, 1, NULL, NULL, 0x10) != 1) nanosleep(&step, NULL);
    while (futex(&words->word[ABSOLUTE], FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0) != 1) nanosleep(&step, NULL);
    EQUAL(words->word[PI] & FUTEX_TID_MASK, us);
    EQUAL(futex(&words->word[PI], FUTEX_UNLOCK_PI_PRIVATE, 0, NULL, NULL, 0), 0);
    while (futex(&words->word[REQUEUE_PI], FUTEX_CMP_REQUEUE_PI_PRIVATE, 1, NULL, &words->pi_target, 0) != 1) nanosleep(&step, NULL);
    // Which of the two futexes a thread waits for that was moved from one to the other only the kernel knows.
    while (futex(&words->target, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0) != 1
           && futex(&words->word[REQUEUED], FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0) != 1) nanosleep(&step, NULL);
    pthread_join(threads[REQUEUED], NULL);
    while (futex(&words->word[WAITV], FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0) != 1) nanosleep(&step, NULL);
    EQUAL(pthread_mutex_unlock(&inheriting), 0);
    pthread_barrier_wait(&leave);
    for (int i = 0; i < WAITERS; i++)
        if (i != REQUEUED) pthread_join(threads[i], NULL);
    pthread_join(robust_owner, NULL);
    return finish();
}
