// Objects of all kinds in use at every moment: whenever the program is saved, bytes lie in pipes, waits are interrupted, signals are
// on their way. Nothing may be lost, doubled or put out of order.
#include "check.h"

enum { ROUNDS = 30000, LINES = 4000 };
static int pipes[2], ping, pong, epoll, lines;
static volatile int done;

static void *write_pipe(void *unused) {
    char block[600];
    uint32_t state = 1;
    for (int round = 0; round < ROUNDS; round++) {
        size_t n = 1 + round % sizeof block;
        for (size_t i = 0; i < n; i++) block[i] = (state = state * 1664525 + 1013904223) >> 24;
        for (size_t at = 0; at < n;) {
            ssize_t written = write(pipes[1], block + at, n - at);
            if (written > 0) at += written;
            else EQUAL(errno, EINTR);
        }
    }
    close(pipes[1]);
    return unused;
}

static void *read_pipe(void *unused) {
    unsigned char block[5000];
    uint32_t state = 1;
    size_t total = 0;
    for (;;) {
        ssize_t n = read(pipes[0], block, 1 + total % sizeof block);
        if (n == 0) break;
        if (n < 0) { EQUAL(errno, EINTR); continue; }
        for (ssize_t i = 0; i < n; i++)
            if (block[i] != (state = state * 1664525 + 1013904223) >> 24) {
                printf("the pipe is broken after %zu bytes\n", total + i);
                failures++;
                return unused;
            }
        total += n;
    }
    size_t expected = 0;
    for (int round = 0; round < ROUNDS; round++) expected += 1 + round % 600;
    EQUAL(total, expected);
    return unused;
}

static void *play(void *unused) {
    uint64_t value, ball = 1;
    for (int round = 0; round < ROUNDS; round++, ball = ball % 1000 + 1) {
        EQUAL(write(ping, &ball, 8), 8);
        EQUAL(read(pong, &value, 8), 8);
        EQUAL(value, ball);
    }
    return unused;
}

static void *play_back(void *unused) {
    uint64_t value;
    struct epoll_event event;
    for (int round = 0; round < ROUNDS; round++) {
        int n;
        while ((n = epoll_wait(epoll, &event, 1, 60000)) < 0 && errno == EINTR) {}
        EQUAL(n, 1);
        EQUAL(event.data.u64, 4711);
        EQUAL(read(ping, &value, 8), 8);
        EQUAL(write(pong, &value, 8), 8);
    }
    return unused;
}

static volatile int next_value;
static void *take_signals(void *unused) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGRTMIN);
    siginfo_t info;
    for (int value = 0; value < ROUNDS; value++) {
        while (sigwaitinfo(&set, &info) < 0) EQUAL(errno, EINTR);
        EQUAL(info.si_value.sival_int, value);
        next_value = value + 1;
    }
    return unused;
}

static void *send_signals(void *unused) {
    for (int value = 0; value < ROUNDS; value++) {
        // A few at a time wait in the queue.
        while (value > next_value + 20) sched_yield();
        EQUAL(sigqueue(getpid(), SIGRTMIN, (union sigval){.sival_int = value}), 0);
    }
    return unused;
}

static void *write_lines(void *unused) {
    for (int line = 0; line < LINES; line++) {
        dprintf(lines, "%d\n", line);
        EQUAL(flock(lines, line % 2 ? LOCK_UN : LOCK_EX), 0);
        usleep(100);
    }
    return unused;
}

static volatile int ticks;
static void tick(int signal) { (void)signal; ticks++; }

int main(void) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGRTMIN);
    sigprocmask(SIG_BLOCK, &set, NULL);
    struct sigaction action = {.sa_handler = tick, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, NULL);
    struct itimerval often = {{0, 3000}, {0, 3000}};
    setitimer(ITIMER_REAL, &often, NULL);

    EQUAL(pipe(pipes), 0);
    ping = eventfd(0, EFD_NONBLOCK);
    pong = eventfd(0, 0);
    epoll = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = 4711};
    EQUAL(epoll_ctl(epoll, EPOLL_CTL_ADD, ping, &event), 0);
    lines = open("lines", O_RDWR | O_CREAT | O_TRUNC, 0600);

    printf("ready\n");
    fflush(stdout);
    void *(*work[])(void *) = {write_pipe, read_pipe, play, play_back, take_signals, send_signals, write_lines};
    pthread_t threads[7];
    for (int i = 0; i < 7; i++) pthread_create(&threads[i], NULL, work[i], NULL);
    for (int i = 0; i < 7; i++) pthread_join(threads[i], NULL);

    FILE *file = fdopen(lines, "r+");
    rewind(file);
    for (int line = 0, seen; line < LINES; line++) EXPECT(fscanf(file, "%d", &seen) == 1 && seen == line);
    EXPECT(ticks > 10);
    return finish();
}
