// Is away for three seconds in all: clocks that count from the machine's start show less, the time of day shows it.
#include "check.h"
#include <sys/timerfd.h>

static struct timespec deadline;
static double begin[3];
static pthread_barrier_t barrier;

static double now(int clock) {
    struct timespec time;
    clock_gettime(clock, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}

// The deadline is four seconds after the start, as the program sees it.
static void on_time(const char *who) {
    double late = now(CLOCK_MONOTONIC) - begin[0] - 4;
    if (late < 0 || late >= 1) printf("%s is %f s late\n", who, late), failures++;
}

static void *sleeper(void *unused) {
    pthread_barrier_wait(&barrier);
    EQUAL(clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &deadline, NULL), 0);
    on_time("sleeper");
    return unused;
}

static void *waiter(void *unused) {
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_t condition;
    pthread_cond_init(&condition, &attributes);
    pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&mutex);
    pthread_barrier_wait(&barrier);
    EQUAL(pthread_cond_timedwait(&condition, &mutex, &deadline), ETIMEDOUT);
    on_time("waiter");
    return unused;
}

static void *reader(void *unused) {
    int timer = timerfd_create(CLOCK_MONOTONIC, 0);
    struct itimerspec setting = {.it_value = deadline};
    EQUAL(timerfd_settime(timer, TFD_TIMER_ABSTIME, &setting, NULL), 0);
    pthread_barrier_wait(&barrier);
    uint64_t ticks;
    EQUAL(read(timer, &ticks, 8), 8);
    on_time("reader");
    return unused;
}

int main(void) {
    void *(*functions[])(void *) = {sleeper, waiter, reader};
    int clocks[] = {CLOCK_MONOTONIC, CLOCK_BOOTTIME, CLOCK_REALTIME};
    pthread_t threads[3];
    pthread_barrier_init(&barrier, NULL, 4);
    clock_gettime(CLOCK_MONOTONIC, &deadline);
    deadline.tv_sec += 4;
    for (int i = 0; i < 3; i++) begin[i] = now(clocks[i]);
    for (int i = 0; i < 3; i++) pthread_create(&threads[i], NULL, functions[i], NULL);
    pthread_barrier_wait(&barrier);
    pause_here();

    // Both by the vdso and by the system call itself.
    double passed = now(CLOCK_REALTIME) - begin[2], away = passed - (now(CLOCK_MONOTONIC) - begin[0]);
    EXPECT(passed > 3 && away > 2.9 && away < 3.1 + passed / 2);
    struct timespec raw;
    syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &raw);
    EXPECT(raw.tv_sec + raw.tv_nsec * 1e-9 - begin[0] < passed - 2.9);
    EXPECT(now(CLOCK_BOOTTIME) - begin[1] < passed - 2.9);
    for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
    return finish();
}
