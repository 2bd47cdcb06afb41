// A program that blocks all signals it can and has one of each pending: for itself and for each of its two threads, each with what
// its sender says; some are ignored besides. A signal of a fault that is pending though blocked can only come from the thread itself.
#include "check.h"

struct kernel_action {
    void *handler;
    unsigned long flags;
    void *restorer;
    unsigned long mask;
};

enum { PROCESS, FIRST, SECOND };

static pthread_barrier_t barrier;
static unsigned long all_but_two;

// SIGCONT is left out, which the signals that stop would take away, and they it.
static int is_used(int signal) { return signal != SIGKILL && signal != SIGSTOP && signal != SIGCONT; }

static int is_ignored(int signal) { return signal == SIGTRAP || signal == SIGSEGV || signal == SIGUSR1 || signal == SIGWINCH; }

static int code_of(int signal) {
    switch (signal) {
    case SIGSEGV: return SEGV_MAPERR;
    case SIGTRAP: return TRAP_BRKPT;
    case SIGBUS: return BUS_ADRERR;
    default: return SI_QUEUE;
    }
}

static siginfo_t info_of(int signal, int whose) {
    siginfo_t info = {.si_signo = signal, .si_code = code_of(signal), .si_errno = whose};
    info.si_pid = 1000 + signal;
    info.si_uid = 2000 + whose;
    info.si_value.sival_ptr = (void *)(0x123456789000 + signal * 16 + whose);
    return info;
}

static void send_all(int whose) {
    pid_t pid = getpid(), tid = syscall(SYS_gettid);
    for (int signal = 1; signal <= 64; signal++) {
        siginfo_t info = info_of(signal, whose);
        if (!is_used(signal)) continue;
        if (whose == PROCESS) EQUAL(syscall(SYS_rt_sigqueueinfo, pid, signal, &info), 0);
        else EQUAL(syscall(SYS_rt_tgsigqueueinfo, pid, tid, signal, &info), 0);
    }
}

static void take_all(int whose) {
    for (int signal = 1; signal <= 64; signal++) {
        siginfo_t info = {0}, wanted = info_of(signal, whose);
        unsigned long set = 1UL << (signal - 1);
        struct timespec none = {0};
        if (!is_used(signal)) continue;
        EQUAL(syscall(SYS_rt_sigtimedwait, &set, &info, &none, 8), signal);
        // The kernel may leave out what a signal of this kind does not have.
        EQUAL(info.si_code, wanted.si_code);
        EQUAL(info.si_errno, wanted.si_errno);
        EXPECT(info.si_addr == wanted.si_addr);
        if (info.si_code != SI_QUEUE) continue;
        EQUAL(info.si_uid, wanted.si_uid);
        EXPECT(info.si_value.sival_ptr == wanted.si_value.sival_ptr);
    }
}

static void are_blocked(void) {
    unsigned long blocked = 0;
    EQUAL(syscall(SYS_rt_sigprocmask, SIG_BLOCK, NULL, &blocked, 8), 0);
    EXPECT(blocked == all_but_two);
}

// The C library keeps two signals for itself, which it does not let us block.
static void block_all(void) {
    EQUAL(syscall(SYS_rt_sigprocmask, SIG_SETMASK, &all_but_two, NULL, 8), 0);
}

static void look(int signal, struct kernel_action *action) {
    EQUAL(syscall(SYS_rt_sigaction, signal, NULL, action, 8), 0);
}

static void *second(void *unused) {
    block_all();
    send_all(SECOND);
    pthread_barrier_wait(&barrier);  // set up
    pthread_barrier_wait(&barrier);  // restored
    are_blocked();
    take_all(SECOND);
    pthread_barrier_wait(&barrier);  // taken
    return unused;
}

int main(void) {
    all_but_two = ~(1UL << (SIGKILL - 1) | 1UL << (SIGSTOP - 1));
    struct kernel_action ignored = {.handler = SIG_IGN};
    for (int signal = 1; signal <= 64; signal++)
        if (is_ignored(signal)) EQUAL(syscall(SYS_rt_sigaction, signal, &ignored, NULL, 8), 0);
    pthread_barrier_init(&barrier, NULL, 2);
    pthread_t thread;
    pthread_create(&thread, NULL, second, NULL);
    pthread_barrier_wait(&barrier);
    block_all();
    send_all(FIRST);
    send_all(PROCESS);
    struct kernel_action before[65] = {0};
    for (int signal = 1; signal <= 64; signal++) look(signal, &before[signal]);
    pause_here();

    are_blocked();
    for (int signal = 1; signal <= 64; signal++) {
        struct kernel_action now = {0};
        look(signal, &now);
        EXPECT(memcmp(&now, &before[signal], sizeof now) == 0);
        if (is_ignored(signal)) EXPECT(now.handler == SIG_IGN);
    }
    // A thread's own signals come first.
    take_all(FIRST);
    pthread_barrier_wait(&barrier);
    pthread_barrier_wait(&barrier);
    take_all(PROCESS);
    unsigned long still = 0;
    EQUAL(syscall(SYS_rt_sigpending, &still, 8), 0);
    EXPECT(still == 0);
    return finish();
}
