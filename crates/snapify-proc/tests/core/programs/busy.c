// Works all the time: locks, signals from timers, allocation, vector registers, system calls. Checks itself.
#include "../../kinds/programs/check.h"

#define THREADS 5
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static volatile int stop;
static long total, done[THREADS], ticks;
static int ends[2];

static void on_tick(int signal) {
    (void)signal;
    __atomic_fetch_add(&ticks, 1, __ATOMIC_RELAXED);
}

static void *short_lived(void *x) {
    (void)x;
    return malloc(10);
}

static double sum(long n) {
    double x = 0;
    for (long i = 1; i <= n; i++) x += 1.0 / (double)i;
    return x;
}

static void *worker(void *argument) {
    long index = (intptr_t)argument;
    pid_t tid = gettid();
    double expected = sum(1000);
    unsigned seed = (unsigned)index;
    while (!stop) {
        EXPECT(sum(1000) == expected);
        EQUAL(gettid(), tid);
        size_t bytes = 1 + rand_r(&seed) % 300000;
        char *memory = malloc(bytes);
        memset(memory, (int)index, bytes);
        EQUAL(memory[bytes / 2], index);
        free(memory);
        pthread_mutex_lock(&mutex);
        total++;
        pthread_cond_broadcast(&changed);
        if (index == 3) {
            struct timespec until;
            clock_gettime(CLOCK_REALTIME, &until);
            until.tv_nsec += 1000000;
            if (until.tv_nsec >= 1000000000) until.tv_sec++, until.tv_nsec -= 1000000000;
            int result = pthread_cond_timedwait(&changed, &mutex, &until);
            EXPECT(result == 0 || result == ETIMEDOUT);
        }
        pthread_mutex_unlock(&mutex);
        char c = (char)index, d = 0;
        if (index == 2) {
            EQUAL(write(ends[1], &c, 1), 1);
            EQUAL(read(ends[0], &d, 1), 1);
            EQUAL(d, c);
        }
        if (index == 4) {
            void *map = mmap(0, 1 << 16, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            EXPECT(map != MAP_FAILED);
            *(volatile char *)map = 1;
            EQUAL(munmap(map, 1 << 16), 0);
            pthread_t child;
            EQUAL(pthread_create(&child, 0, short_lived, 0), 0);
            void *result;
            EQUAL(pthread_join(child, &result), 0);
            free(result);
        }
        done[index]++;
    }
    return 0;
}

int main(void) {
    pthread_t thread[THREADS];
    EQUAL(pipe(ends), 0);
    struct sigaction action = {.sa_handler = on_tick, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, 0);
    struct itimerval often = {{0, 1000}, {0, 1000}};
    for (intptr_t i = 0; i < THREADS; i++) pthread_create(&thread[i], 0, worker, (void *)i);
    setitimer(ITIMER_REAL, &often, 0);
    pause_here();
    long before = ticks;
    while (ticks < before + 20) sched_yield();
    stop = 1;
    long sum_done = 0;
    for (int i = 0; i < THREADS; i++) {
        EQUAL(pthread_join(thread[i], 0), 0);
        sum_done += done[i];
        EXPECT(done[i] > 0);
    }
    EQUAL(total, sum_done);
    return finish();
}
