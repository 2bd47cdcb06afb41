// Threads that wait with another signal mask than their own: the one that they wait with lets their signal in, and their own
// one, which blocks it, is back in force afterwards.
#include "check.h"
#include <sys/select.h>

enum { SUSPEND, WAIT, PPOLL, PSELECT, EPOLL, WAITERS };

static pthread_barrier_t barrier;
static pthread_t threads[WAITERS];
static volatile pid_t ids[WAITERS];
static __thread volatile int taken;

static void take(int signal) { taken += signal; }

static int own_signal(int n) { return SIGRTMIN + 1 + n; }

static void *waiter(void *number) {
    int n = (int)(long)number, signal = own_signal(n), result = 0, number_taken = 0;
    sigset_t all, but_one, one, now;
    sigfillset(&all);
    but_one = all;
    sigdelset(&but_one, signal);
    sigemptyset(&one);
    sigaddset(&one, signal);
    pthread_sigmask(SIG_SETMASK, &all, NULL);
    int epoll = epoll_create1(0);
    struct epoll_event event;
    siginfo_t info;
    ids[n] = syscall(SYS_gettid);
    pthread_barrier_wait(&barrier);
    errno = 0;
    switch (n) {
    case SUSPEND: result = sigsuspend(&but_one); break;
    case WAIT: number_taken = sigwaitinfo(&one, &info); break;
    case PPOLL: result = ppoll(NULL, 0, NULL, &but_one); break;
    case PSELECT: result = pselect(0, NULL, NULL, NULL, NULL, &but_one); break;
    case EPOLL: result = epoll_pwait(epoll, &event, 1, -1, &but_one); break;
    }
    if (n == WAIT) {
        EQUAL(number_taken, signal);
        EQUAL(taken, 0);
        EQUAL(info.si_value.sival_int, 77);
    } else {
        EQUAL(result, -1);
        EQUAL(errno, EINTR);
        EQUAL(taken, signal);
    }
    pthread_sigmask(SIG_SETMASK, NULL, &now);
    for (int s = 1; s < 65; s++)
        if (s != SIGKILL && s != SIGSTOP && s != 32 && s != 33) EQUAL(sigismember(&now, s), 1);
    return NULL;
}

// Until the thread waits in the kernel.
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

int main(void) {
    struct sigaction action = {.sa_handler = take};
    for (int i = 0; i < WAITERS; i++) sigaction(own_signal(i), &action, NULL);
    pthread_barrier_init(&barrier, NULL, WAITERS + 1);
    for (long i = 0; i < WAITERS; i++) pthread_create(&threads[i], NULL, waiter, (void *)i);
    pthread_barrier_wait(&barrier);
    for (int i = 0; i < WAITERS; i++)
        while (!sleeps(ids[i])) sched_yield();
    pause_here();

    for (int i = 0; i < WAITERS; i++) {
        siginfo_t info = {.si_code = SI_QUEUE, .si_value.sival_int = 77};
        info.si_signo = own_signal(i);
        EQUAL(syscall(SYS_rt_tgsigqueueinfo, getpid(), ids[i], own_signal(i), &info), 0);
    }
    for (int i = 0; i < WAITERS; i++) pthread_join(threads[i], NULL);
    return finish();
}
