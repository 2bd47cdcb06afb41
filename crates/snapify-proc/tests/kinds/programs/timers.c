#include "check.h"

static volatile int alarms, ticks, thread_ticks, cpu_ticks;
static volatile pid_t ticked;
static volatile void *value;

static void on_alarm(int signal) { (void)signal; alarms++; }
static void on_tick(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)context;
    ticks++;
    value = info->si_value.sival_ptr;
}
static void on_thread_tick(int signal) { (void)signal; thread_ticks++; ticked = syscall(SYS_gettid); }
static void on_cpu_tick(int signal) { (void)signal; cpu_ticks++; }

static pthread_barrier_t barrier;
static volatile pid_t worker_id;

static void *worker(void *unused) {
    worker_id = syscall(SYS_gettid);
    pthread_barrier_wait(&barrier);
    pthread_barrier_wait(&barrier);
    // The first tick may have come while the thread waited.
    for (int i = 0; i < 500 && thread_ticks < 2; i++) usleep(10000);
    return unused;
}

static int make(clockid_t clock, int notify, int signal, pid_t thread, void *data) {
    struct sigevent event = {.sigev_notify = notify, .sigev_signo = signal, .sigev_value.sival_ptr = data};
    event._sigev_un._tid = thread;
    int id = -1;
    EQUAL(syscall(SYS_timer_create, clock, &event, &id), 0);
    return id;
}

static void set(int id, long value_ms, long interval_ms) {
    struct itimerspec time = {{interval_ms / 1000, interval_ms % 1000 * 1000000}, {value_ms / 1000, value_ms % 1000 * 1000000}};
    EQUAL(syscall(SYS_timer_settime, id, 0, &time, NULL), 0);
}

static double left(int id, double *interval) {
    struct itimerspec time;
    EQUAL(syscall(SYS_timer_gettime, id, &time), 0);
    if (interval) *interval = time.it_interval.tv_sec + time.it_interval.tv_nsec * 1e-9;
    return time.it_value.tv_sec + time.it_value.tv_nsec * 1e-9;
}

int main(void) {
    struct sigaction action = {.sa_sigaction = on_tick, .sa_flags = SA_SIGINFO};
    sigaction(SIGRTMIN + 1, &action, NULL);
    signal(SIGALRM, on_alarm);
    signal(SIGRTMIN + 2, on_thread_tick);
    signal(SIGPROF, on_cpu_tick);

    pthread_barrier_init(&barrier, NULL, 2);
    sigset_t mine, before;
    sigemptyset(&mine);
    sigaddset(&mine, SIGRTMIN + 5);
    pthread_sigmask(SIG_BLOCK, &mine, &before);
    pthread_t thread;
    pthread_create(&thread, NULL, worker, NULL);
    pthread_barrier_wait(&barrier);

    int first = make(CLOCK_MONOTONIC, SIGEV_SIGNAL, SIGRTMIN + 1, 0, &value);
    int dropped = make(CLOCK_MONOTONIC, SIGEV_SIGNAL, SIGRTMIN + 1, 0, NULL);
    int dropped_too = make(CLOCK_MONOTONIC, SIGEV_NONE, 0, 0, NULL);
    int long_one = make(CLOCK_REALTIME, SIGEV_SIGNAL, SIGRTMIN + 1, 0, NULL);
    int unset = make(CLOCK_BOOTTIME, SIGEV_NONE, 0, 0, NULL);
    int to_thread = make(CLOCK_MONOTONIC, SIGEV_THREAD_ID, SIGRTMIN + 2, worker_id, NULL);
    clockid_t cpu;
    EQUAL(pthread_getcpuclockid(thread, &cpu), 0);
    int of_thread = make(cpu, SIGEV_SIGNAL, SIGRTMIN + 1, 0, NULL);
    int of_process = make(CLOCK_PROCESS_CPUTIME_ID, SIGEV_NONE, 0, 0, NULL);
    int expired = make(CLOCK_MONOTONIC, SIGEV_SIGNAL, SIGRTMIN + 5, 0, (void *)77);
    syscall(SYS_timer_delete, dropped);
    syscall(SYS_timer_delete, dropped_too);
    set(first, 50, 50);
    set(long_one, 1000000, 2000);
    set(to_thread, 20, 30);
    set(of_thread, 500000, 0);
    set(of_process, 600000, 0);
    set(expired, 1, 0);
    sigset_t pending;
    do sigpending(&pending);
    while (!sigismember(&pending, SIGRTMIN + 5));
    struct itimerval alarm = {{0, 70000}, {0, 70000}}, profile = {{0, 10000}, {5, 0}}, now;
    setitimer(ITIMER_REAL, &alarm, NULL);
    setitimer(ITIMER_PROF, &profile, NULL);
    pause_here();

    getitimer(ITIMER_REAL, &now);
    EQUAL(now.it_interval.tv_usec, 70000);
    EXPECT(now.it_value.tv_sec == 0 && now.it_value.tv_usec <= 70000);
    getitimer(ITIMER_PROF, &now);
    EXPECT(now.it_interval.tv_usec == 10000 && now.it_value.tv_sec >= 2);
    getitimer(ITIMER_VIRTUAL, &now);
    EXPECT(now.it_value.tv_sec == 0 && now.it_value.tv_usec == 0);

    double interval, rest = left(long_one, &interval);
    EXPECT(rest > 900 && rest <= 1000 && interval == 2);
    rest = left(of_thread, NULL);
    EXPECT(rest > 499 && rest <= 500);
    rest = left(of_process, NULL);
    EXPECT(rest > 590 && rest <= 600);
    EXPECT(left(unset, NULL) == 0);
    struct itimerspec none;
    EQUAL(syscall(SYS_timer_gettime, dropped, &none), -1);
    EQUAL(syscall(SYS_timer_gettime, dropped_too, &none), -1);
    EXPECT(left(expired, NULL) == 0);

    siginfo_t info;
    struct timespec wait = {2, 0};
    EQUAL(sigtimedwait(&mine, &info, &wait), SIGRTMIN + 5);
    EXPECT(info.si_code == SI_TIMER && info.si_value.sival_ptr == (void *)77);

    alarms = ticks = thread_ticks = 0;
    pthread_barrier_wait(&barrier);
    pthread_join(thread, NULL);
    EXPECT(thread_ticks >= 2);
    EQUAL(ticked, worker_id);
    for (int i = 0; i < 500 && (alarms < 2 || ticks < 2); i++) usleep(10000);
    EXPECT(alarms >= 2 && ticks >= 2);
    EXPECT(value == &value);
    // New ids do not collide.
    int fresh = make(CLOCK_MONOTONIC, SIGEV_NONE, 0, 0, NULL);
    EXPECT(fresh != first && fresh != long_one && fresh != unset && fresh != to_thread && fresh != of_thread);
    return finish();
}
