/* Threads blocked in all sorts of calls, with all sorts of state, until standard input ends. Every call must go on as
 * if nothing had happened: a wrong return value ends the program with the line number as its status. */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
static sem_t semaphore;
static int over, event, started[2];
static int fifo[2];

static void begin(void) {
    if (write(started[1], "x", 1) != 1) exit(__LINE__);
}

static void *waits_on_condition(void *unused) {
    pthread_mutex_lock(&mutex);
    begin();
    while (!over) pthread_cond_wait(&condition, &mutex);
    pthread_mutex_unlock(&mutex);
    return unused;
}

static void *waits_on_semaphore(void *unused) {
    begin();
    if (sem_wait(&semaphore) != 0) exit(__LINE__);
    return unused;
}

static void *waits_on_eventfd(void *unused) {
    uint64_t value;
    begin();
    if (read(event, &value, sizeof value) != sizeof value) exit(__LINE__);
    return unused;
}

static void *waits_on_pipe(void *unused) {
    char byte;
    begin();
    if (read(fifo[0], &byte, 1) != 1) exit(__LINE__);
    return unused;
}

static void *waits_in_poll(void *unused) {
    struct pollfd fd = {.fd = fifo[0], .events = POLLIN};
    begin();
    if (poll(&fd, 1, -1) != 1) exit(__LINE__);
    return unused;
}

static void *waits_in_epoll(void *unused) {
    const int epoll = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event wanted = {.events = EPOLLIN, .data.u64 = 0x123456789abcdef0}, got;
    epoll_ctl(epoll, EPOLL_CTL_ADD, fifo[0], &wanted);
    begin();
    if (epoll_wait(epoll, &got, 1, -1) != 1 || got.data.u64 != wanted.data.u64) exit(__LINE__);
    return unused;
}

static void *waits_for_signal(void *unused) {
    sigset_t set;
    siginfo_t info;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR2);
    begin();
    if (sigwaitinfo(&set, &info) != SIGUSR2 || info.si_value.sival_int != 77) exit(__LINE__);
    return unused;
}

int main(void) {
    void *(*const waits[])(void *) = {waits_on_condition, waits_on_semaphore, waits_on_eventfd, waits_on_pipe,
                                      waits_in_poll,      waits_in_epoll,     waits_for_signal};
    const int count = sizeof waits / sizeof *waits;
    pthread_t threads[sizeof waits / sizeof *waits];
    sigset_t blocked;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR1);
    sigaddset(&blocked, SIGUSR2);
    pthread_sigmask(SIG_BLOCK, &blocked, 0);
    raise(SIGUSR1); /* stays pending */
    sem_init(&semaphore, 0, 0);
    event = eventfd(0, EFD_CLOEXEC);
    if (pipe(fifo) || pipe(started)) return __LINE__;
    char *shared = mmap(0, 1 << 20, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    void *reserved = mmap(0, 1ul << 36, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (shared == MAP_FAILED || reserved == MAP_FAILED) return __LINE__;
    shared[4096] = 42;
    for (int i = 0; i < count; i++) pthread_create(&threads[i], 0, waits[i], 0);
    char byte;
    for (int i = 0; i < count; i++)
        if (read(started[0], &byte, 1) != 1) return __LINE__;
    puts("ready");
    fflush(stdout);
    if (read(0, &byte, 1) != 0) return __LINE__;
    pthread_mutex_lock(&mutex);
    over = 1;
    pthread_cond_signal(&condition);
    pthread_mutex_unlock(&mutex);
    sem_post(&semaphore);
    const uint64_t one = 1;
    /* Two readers of the pipe: poll and epoll only look, one thread takes a byte, one byte stays. */
    if (write(event, &one, sizeof one) != sizeof one || write(fifo[1], "xy", 2) != 2) return __LINE__;
    union sigval value = {.sival_int = 77};
    if (sigqueue(getpid(), SIGUSR2, value) != 0) return __LINE__;
    for (int i = 0; i < count; i++) pthread_join(threads[i], 0);
    sigset_t pending;
    sigpending(&pending);
    return !(sigismember(&pending, SIGUSR1) && shared[4096] == 42);
}
