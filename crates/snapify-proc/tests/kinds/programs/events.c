#include "check.h"
#include <sys/signalfd.h>
#include <sys/timerfd.h>

static void watch(int epoll, int fd, uint32_t events, uint64_t data) {
    struct epoll_event event = {.events = events, .data.u64 = data};
    EQUAL(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event), 0);
}

// Sum of the data of all ready registrations.
static uint64_t ready(int epoll) {
    struct epoll_event events[16];
    uint64_t sum = 0;
    int n = epoll_wait(epoll, events, 16, 0);
    for (int i = 0; i < n; i++) sum += events[i].data.u64;
    return sum;
}

int main(void) {
    uint64_t value;
    int counter = eventfd(41, EFD_CLOEXEC), semaphore = eventfd(3, EFD_SEMAPHORE | EFD_NONBLOCK);
    int huge = eventfd(0, 0), zero = eventfd(0, EFD_NONBLOCK), zero_too = dup(zero), another = eventfd(0, EFD_NONBLOCK);
    value = 0xfffffffffffffff0;
    EQUAL(write(huge, &value, 8), 8);
    int pipes[2];
    EQUAL(pipe(pipes), 0);

    int epoll = epoll_create1(EPOLL_CLOEXEC), outer = epoll_create1(0);
    watch(epoll, counter, EPOLLIN, 1);
    watch(epoll, zero, EPOLLIN, 0x1000000000000000);
    watch(epoll, pipes[0], EPOLLIN | EPOLLET, 0x20);
    watch(epoll, pipes[1], EPOLLOUT | EPOLLONESHOT, 0x300);
    watch(outer, epoll, EPOLLIN, 7);

    // A registration under a number that its file has not any more: closed, or given to another file.
    int gone = eventfd(1, EFD_NONBLOCK), gone_alias = dup(gone);
    int lent = eventfd(1, EFD_NONBLOCK), lent_alias = dup(lent);
    watch(outer, gone, EPOLLIN, 0x100);
    watch(outer, lent, EPOLLIN, 0x1000);

    int periodic = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK), absolute = timerfd_create(CLOCK_REALTIME, TFD_CLOEXEC);
    int unset = timerfd_create(CLOCK_BOOTTIME, TFD_NONBLOCK), expired = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
    struct itimerspec time = {{0, 20000000}, {0, 1000000}};
    EQUAL(timerfd_settime(periodic, 0, &time, NULL), 0);
    clock_gettime(CLOCK_REALTIME, &time.it_value);
    time.it_value.tv_sec += 5000;
    EQUAL(timerfd_settime(absolute, TFD_TIMER_ABSTIME, &time, NULL), 0);
    time = (struct itimerspec){{0, 0}, {0, 1}};
    EQUAL(timerfd_settime(expired, 0, &time, NULL), 0);
    watch(epoll, expired, EPOLLIN, 0x50000);
    // One that nobody reads for several periods.
    int frequent = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
    time = (struct itimerspec){{0, 2000000}, {0, 2000000}};
    EQUAL(timerfd_settime(frequent, 0, &time, NULL), 0);
    usleep(60000);

    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    sigprocmask(SIG_BLOCK, &set, NULL);
    int signals = signalfd(-1, &set, SFD_NONBLOCK);
    kill(getpid(), SIGUSR1);
    watch(epoll, signals, EPOLLIN, 0x600000);

    close(gone);
    EQUAL(dup2(zero, lent), lent);

    while (poll(&(struct pollfd){expired, POLLIN, 0}, 1, 1000) != 1) {}
    EQUAL(ready(epoll), 1 + 0x300 + 0x50000 + 0x600000);
    EQUAL(ready(outer), 7 + 0x100 + 0x1000);
    pause_here();

    EQUAL(read(expired, &value, 8), 8);
    EQUAL(value, 1);
    EQUAL(read(expired, &value, 8), -1);
    EQUAL(read(unset, &value, 8), -1);
    EXPECT(read(frequent, &value, 8) == 8 && value >= 30);
    timerfd_gettime(absolute, &time);
    EXPECT(time.it_value.tv_sec > 4000 && time.it_value.tv_sec < 5000 && time.it_interval.tv_nsec == 20000000);
    EQUAL(fcntl(absolute, F_GETFD), FD_CLOEXEC);
    EQUAL(fcntl(absolute, F_GETFL) & O_NONBLOCK, 0);
    EXPECT(read(periodic, &value, 8) == 8 && value >= 1);
    EXPECT(poll(&(struct pollfd){periodic, POLLIN, 0}, 1, 1000) == 1);
    struct signalfd_siginfo info;
    EQUAL(read(signals, &info, sizeof info), sizeof info);
    EQUAL(info.ssi_signo, SIGUSR1);
    EQUAL(info.ssi_pid, getpid());
    EQUAL(read(signals, &info, sizeof info), -1);

    EQUAL(fcntl(counter, F_GETFD), FD_CLOEXEC);
    EQUAL(fcntl(counter, F_GETFL) & O_NONBLOCK, 0);
    EQUAL(fcntl(gone, F_GETFD), -1);
    EQUAL(ready(outer), 7 + 0x100 + 0x1000);
    EQUAL(read(gone_alias, &value, 8), 8);
    EQUAL(ready(outer), 7 + 0x1000);
    EQUAL(read(lent_alias, &value, 8), 8);
    EQUAL(ready(outer), 7);
    // The number leads to the other file still.
    value = 5;
    EQUAL(write(lent, &value, 8), 8);
    EQUAL(read(zero_too, &value, 8), 8);
    EQUAL(value, 5);

    EQUAL(ready(epoll), 1);
    EQUAL(read(counter, &value, 8), 8);
    EQUAL(value, 41);
    EQUAL(ready(epoll), 0);
    EQUAL(ready(outer), 0);
    for (int i = 0; i < 3; i++) {
        EQUAL(read(semaphore, &value, 8), 8);
        EQUAL(value, 1);
    }
    EQUAL(read(semaphore, &value, 8), -1);
    EQUAL(read(huge, &value, 8), 8);
    EXPECT(value == 0xfffffffffffffff0);

    value = 2;
    EQUAL(write(zero_too, &value, 8), 8);
    EQUAL(read(another, &value, 8), -1);
    EQUAL(ready(epoll), 0x1000000000000000);
    EQUAL(read(zero, &value, 8), 8);
    EQUAL(value, 2);
    EQUAL(write(pipes[1], "x", 1), 1);
    EQUAL(ready(epoll), 0x20);
    EQUAL(ready(epoll), 0);  // edge-triggered
    struct epoll_event again = {.events = EPOLLOUT, .data.u64 = 0x4000};
    EQUAL(epoll_ctl(epoll, EPOLL_CTL_MOD, pipes[1], &again), 0);
    EQUAL(ready(epoll), 0x4000);
    return finish();
}
