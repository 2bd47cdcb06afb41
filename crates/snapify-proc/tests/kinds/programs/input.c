// Signals on input: who gets them and which; leases, and hints for writing.
#include "check.h"

#ifndef F_GET_RW_HINT
#define F_GET_RW_HINT 1035
#define F_SET_RW_HINT 1036
#endif

static volatile int count[65], last_fd[65];
static volatile pid_t taker;

static void note(int signal, siginfo_t *info, void *context) {
    (void)context;
    last_fd[signal] = info->si_fd;
    taker = syscall(SYS_gettid);
    // Last: another thread waits for it.
    count[signal]++;
}

static volatile pid_t thread_id;
static pthread_barrier_t barrier;
static void *thread(void *unused) {
    thread_id = syscall(SYS_gettid);
    pthread_barrier_wait(&barrier);
    pthread_barrier_wait(&barrier);
    return unused;
}

static void check_owner(int fd, int type, pid_t pid) {
    struct f_owner_ex owner;
    EQUAL(fcntl(fd, F_GETOWN_EX, &owner), 0);
    EQUAL(owner.type, type);
    EQUAL(owner.pid, pid);
}

int main(void) {
    struct sigaction action = {.sa_sigaction = note, .sa_flags = SA_SIGINFO | SA_RESTART};
    sigaction(SIGIO, &action, NULL);
    sigaction(SIGRTMIN + 3, &action, NULL);
    sigaction(SIGRTMIN + 4, &action, NULL);
    setpgid(0, 0);
    pthread_t other;
    pthread_barrier_init(&barrier, NULL, 2);
    pthread_create(&other, NULL, thread, NULL);
    pthread_barrier_wait(&barrier);

    int plain[2], chosen[2], to_thread[2], quiet[2], loaded[2];
    EQUAL(pipe(plain) | pipe(chosen) | pipe(to_thread) | pipe(quiet) | pipe(loaded), 0);
    EQUAL(fcntl(plain[0], F_SETOWN, getpid()), 0);
    EQUAL(fcntl(plain[0], F_SETFL, O_ASYNC | O_NONBLOCK), 0);
    EQUAL(fcntl(chosen[0], F_SETOWN, -getpgrp()), 0);
    EQUAL(fcntl(chosen[0], F_SETSIG, SIGRTMIN + 3), 0);
    EQUAL(fcntl(chosen[0], F_SETFL, O_ASYNC), 0);
    struct f_owner_ex owner = {F_OWNER_TID, thread_id};
    EQUAL(fcntl(to_thread[0], F_SETOWN_EX, &owner), 0);
    EQUAL(fcntl(to_thread[0], F_SETSIG, SIGRTMIN + 4), 0);
    EQUAL(fcntl(to_thread[0], F_SETFL, O_ASYNC), 0);
    EQUAL(fcntl(quiet[0], F_SETOWN, getpid()), 0);
    EQUAL(fcntl(quiet[0], F_SETSIG, SIGRTMIN + 3), 0);
    // Content that was told of already.
    EQUAL(write(loaded[1], "x", 1), 1);
    EQUAL(fcntl(loaded[0], F_SETOWN, getpid()), 0);
    EQUAL(fcntl(loaded[0], F_SETFL, O_ASYNC), 0);

    int leased = open("leased", O_RDONLY | O_CREAT, 0600), alone = open("alone", O_RDWR | O_CREAT, 0600);
    EQUAL(fcntl(leased, F_SETLEASE, F_RDLCK), 0);
    EQUAL(fcntl(alone, F_SETLEASE, F_WRLCK), 0);
    EQUAL(fcntl(leased, F_SETSIG, SIGRTMIN + 3), 0);
    int hinted = open("hinted", O_RDWR | O_CREAT, 0600);
    uint64_t hint = 3;
    EQUAL(fcntl(hinted, F_SET_RW_HINT, &hint), 0);
    pause_here();

    EQUAL(count[SIGIO], 0);
    EQUAL(count[SIGRTMIN + 3], 0);
    EQUAL(count[SIGRTMIN + 4], 0);
    check_owner(plain[0], F_OWNER_PID, getpid());
    check_owner(quiet[0], F_OWNER_PID, getpid());
    check_owner(to_thread[0], F_OWNER_TID, thread_id);
    check_owner(chosen[0], F_OWNER_PGRP, getpgrp());
    check_owner(plain[1], 0, 0);
    EQUAL(fcntl(plain[0], F_GETFL) & (O_ASYNC | O_NONBLOCK), O_ASYNC | O_NONBLOCK);
    EQUAL(fcntl(quiet[0], F_GETFL) & O_ASYNC, 0);
    EQUAL(fcntl(quiet[0], F_GETSIG), SIGRTMIN + 3);
    EQUAL(write(plain[1], "x", 1), 1);
    EQUAL(count[SIGIO], 1);
    EQUAL(write(quiet[1], "x", 1), 1);
    EQUAL(write(chosen[1], "x", 1), 1);
    EQUAL(count[SIGRTMIN + 3], 1);
    EQUAL(last_fd[SIGRTMIN + 3], chosen[0]);
    EQUAL(write(to_thread[1], "x", 1), 1);
    while (count[SIGRTMIN + 4] == 0) sched_yield();
    EQUAL(taker, thread_id);

    EQUAL(fcntl(leased, F_GETLEASE), F_RDLCK);
    EQUAL(fcntl(alone, F_GETLEASE), F_WRLCK);
    EQUAL(fcntl(leased, F_GETSIG), SIGRTMIN + 3);
    check_owner(leased, F_OWNER_PID, getpid());
    EQUAL(open("leased", O_WRONLY | O_NONBLOCK), -1);
    EQUAL(errno, EWOULDBLOCK);
    EQUAL(count[SIGRTMIN + 3], 2);
    EQUAL(last_fd[SIGRTMIN + 3], leased);
    EQUAL(fcntl(leased, F_SETLEASE, F_UNLCK), 0);
    EQUAL(fcntl(hinted, F_GET_RW_HINT, &hint), 0);
    EQUAL(hint, 3);
    pthread_barrier_wait(&barrier);
    pthread_join(other, NULL);
    return finish();
}
