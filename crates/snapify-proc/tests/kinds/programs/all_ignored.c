// A program that ignores all signals it can, SIGTRAP among them, also where it is in the middle of a call when it is saved: it has
// a thread that sleeps in a read, which must not be seen to end.
#include "check.h"

struct kernel_action {
    void *handler;
    unsigned long flags;
    void *restorer;
    unsigned long mask;
};

static int pipe_ends[2];

static void *reader(void *unused) {
    char byte = 0;
    EQUAL(read(pipe_ends[0], &byte, 1), 1);
    EQUAL(byte, 'x');
    return unused;
}

static int changeable(int signal) { return signal != SIGKILL && signal != SIGSTOP; }

// The C library keeps two signals for itself, which it does not let us ignore.
static void ignore_all(void) {
    struct kernel_action action = {.handler = SIG_IGN};
    for (int signal = 1; signal <= 64; signal++)
        if (changeable(signal)) EQUAL(syscall(SYS_rt_sigaction, signal, &action, NULL, 8), 0);
}

static void are_ignored(void) {
    for (int signal = 1; signal <= 64; signal++) {
        struct kernel_action now = {0};
        if (!changeable(signal)) continue;
        EQUAL(syscall(SYS_rt_sigaction, signal, NULL, &now, 8), 0);
        if (now.handler != SIG_IGN) printf("signal %d: %p\n", signal, now.handler), failures++;
        EQUAL(syscall(SYS_tgkill, getpid(), syscall(SYS_gettid), signal), 0);
    }
}

int main(void) {
    EQUAL(pipe(pipe_ends), 0);
    pthread_t thread;
    pthread_create(&thread, NULL, reader, NULL);
    ignore_all();
    are_ignored();
    pause_here();

    are_ignored();
    unsigned long blocked = 1;
    EQUAL(syscall(SYS_rt_sigprocmask, SIG_BLOCK, NULL, &blocked, 8), 0);
    EQUAL(blocked, 0);
    EQUAL(write(pipe_ends[1], "x", 1), 1);
    pthread_join(thread, NULL);
    return finish();
}
