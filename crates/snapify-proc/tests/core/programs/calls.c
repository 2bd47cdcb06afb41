// Threads that sleep in system calls while they are saved: none may see that.
#include "../../kinds/programs/check.h"
#include <linux/futex.h>
#include <sys/select.h>

static int word, pair[2], wake_poll[2], event;
static struct timespec begin;
static volatile int handled;
static pthread_t paused;

static double since_begin(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)(now.tv_sec - begin.tv_sec) + (double)(now.tv_nsec - begin.tv_nsec) * 1e-9;
}

static void handler(int signal) { handled = signal; }

static void *in_futex(void *x) {
    EQUAL(syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 0, 0, 0, 0), 0);
    return x;
}

static void *in_futex_until(void *x) {
    struct timespec until = begin;
    until.tv_sec += 1;
    EQUAL(syscall(SYS_futex, &event, FUTEX_WAIT_BITSET_PRIVATE, event, &until, 0, FUTEX_BITSET_MATCH_ANY), -1);
    EXPECT(errno == 0 && since_begin() >= 1);
    return x;
}

static void *in_nanosleep(void *x) {
    struct timespec time = {1, 500000000}, rest = {0, 0};
    double start = since_begin();
    EQUAL(syscall(SYS_nanosleep, &time, &rest), 0);
    EXPECT(since_begin() - start >= 1.5);
    return x;
}

static void *in_nanosleep_without_rest(void *x) {
    struct timespec time = {0, 800000000};
    double start = since_begin();
    EQUAL(syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, &time, 0), 0);
    EXPECT(since_begin() - start >= 0.8);
    return x;
}

static void *in_absolute_sleep(void *x) {
    struct timespec until = begin;
    until.tv_sec += 2;
    EQUAL(clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, 0), 0);
    EXPECT(since_begin() >= 2);
    return x;
}

static void *in_read(void *x) {
    char c;
    EQUAL(read(pair[0], &c, 1), 1);
    EQUAL(c, 'x');
    return x;
}

static void *in_eventfd(void *x) {
    uint64_t value;
    EQUAL(read(event, &value, 8), 8);
    EQUAL(value, 5);
    return x;
}

static void *in_poll(void *x) {
    struct pollfd fd = {wake_poll[0], POLLIN, 0};
    EQUAL(poll(&fd, 1, -1), 1);
    return x;
}

static void *in_poll_with_time(void *x) {
    double start = since_begin();
    EQUAL(poll(0, 0, 700), 0);
    EXPECT(since_begin() - start >= 0.69);
    return x;
}

static void *in_ppoll(void *x) {
    struct pollfd fd = {wake_poll[0], POLLIN, 0};
    struct timespec long_time = {1000, 0};
    EQUAL(ppoll(&fd, 1, &long_time, 0), 1);
    return x;
}

static void *in_select(void *x) {
    fd_set set;
    FD_ZERO(&set);
    FD_SET(wake_poll[0], &set);
    EQUAL(select(wake_poll[0] + 1, &set, 0, 0, 0), 1);
    return x;
}

static void *in_epoll(void *x) {
    int set = epoll_create1(0);
    struct epoll_event one = {.events = EPOLLIN, .data.u64 = 77}, got;
    EQUAL(epoll_ctl(set, EPOLL_CTL_ADD, wake_poll[0], &one), 0);
    EQUAL(epoll_wait(set, &got, 1, -1), 1);
    EQUAL(got.data.u64, 77);
    return x;
}

static void *in_sigtimedwait(void *x) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGRTMIN + 3);
    siginfo_t info;
    EQUAL(sigwaitinfo(&set, &info), SIGRTMIN + 3);
    return x;
}

static void *in_pause(void *x) {
    sigset_t others;
    sigfillset(&others);
    sigdelset(&others, SIGUSR2);
    EQUAL(sigsuspend(&others), -1);
    EQUAL(handled, SIGUSR2);
    return x;
}

int main(void) {
    void *(*all[])(void *) = {in_futex, in_futex_until, in_nanosleep, in_nanosleep_without_rest, in_absolute_sleep, in_read, in_eventfd, in_poll,
                              in_poll_with_time, in_ppoll, in_select, in_epoll, in_sigtimedwait, in_pause};
    int count = sizeof all / sizeof *all;
    pthread_t thread[32];
    clock_gettime(CLOCK_MONOTONIC, &begin);
    EQUAL(pipe(pair), 0);
    EQUAL(pipe(wake_poll), 0);
    event = eventfd(0, 0);
    struct sigaction action = {.sa_handler = handler};
    sigaction(SIGUSR2, &action, 0);
    sigset_t mask;
    sigemptyset(&mask);
    sigaddset(&mask, SIGRTMIN + 3);
    sigaddset(&mask, SIGUSR2);
    pthread_sigmask(SIG_BLOCK, &mask, 0);
    for (int i = 0; i < count; i++) {
        pthread_create(&thread[i], 0, all[i], 0);
        if (all[i] == in_pause) paused = thread[i];
    }
    // Most of them are asleep by then; saving one that is not is just as good a test.
    usleep(100000);
    pause_here();
    while (syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, 1, 0, 0, 0) == 0) sched_yield();
    EQUAL(write(pair[1], "x", 1), 1);
    uint64_t five = 5;
    EQUAL(write(event, &five, 8), 8);
    EQUAL(write(wake_poll[1], "y", 1), 1);
    kill(getpid(), SIGRTMIN + 3);
    pthread_kill(paused, SIGUSR2);
    for (int i = 0; i < count; i++) EQUAL(pthread_join(thread[i], 0), 0);
    return finish();
}
