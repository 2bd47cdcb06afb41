#include "check.h"

static volatile int seen[65], order[16], taken;
static volatile pid_t taker[65];
static stack_t alternate;

static void note(int signal, siginfo_t *info, void *context) {
    (void)context;
    seen[signal]++;
    taker[signal] = syscall(SYS_gettid);
    if (signal >= SIGRTMIN && taken < 16) order[taken++] = info->si_value.sival_int;
    char here;
    if (signal == SIGUSR2) EXPECT(&here >= (char *)alternate.ss_sp && &here < (char *)alternate.ss_sp + alternate.ss_size);
}

static pthread_barrier_t barrier;
static volatile pid_t worker_id;

static void *worker(void *unused) {
    worker_id = syscall(SYS_gettid);
    pthread_barrier_wait(&barrier);  // set up
    pthread_barrier_wait(&barrier);  // restored
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGHUP);
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
    EQUAL(seen[SIGHUP], 1);
    EQUAL(taker[SIGHUP], worker_id);
    return unused;
}

int main(void) {
    struct sigaction action = {.sa_sigaction = note, .sa_flags = SA_SIGINFO | SA_RESTART}, now;
    sigemptyset(&action.sa_mask);
    sigaddset(&action.sa_mask, SIGTERM);
    int caught[] = {SIGUSR1, SIGHUP, SIGRTMIN + 3, SIGRTMIN + 4, SIGSEGV};
    for (int i = 0; i < 5; i++) sigaction(caught[i], &action, NULL);
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESETHAND;
    sigaction(SIGUSR2, &action, NULL);
    signal(SIGINT, SIG_IGN);
    alternate = (stack_t){.ss_sp = malloc(65536), .ss_size = 65536};
    sigaltstack(&alternate, NULL);

    sigset_t blocked, before, set;
    sigfillset(&blocked);
    sigdelset(&blocked, SIGUSR2);
    pthread_sigmask(SIG_SETMASK, &blocked, &before);
    pthread_barrier_init(&barrier, NULL, 2);
    pthread_t thread;
    pthread_create(&thread, NULL, worker, NULL);
    pthread_barrier_wait(&barrier);

    kill(getpid(), SIGUSR1);
    syscall(SYS_tgkill, getpid(), worker_id, SIGHUP);
    for (int i = 0; i < 4; i++) sigqueue(getpid(), SIGRTMIN + 4, (union sigval){.sival_int = 40 + i});
    for (int i = 0; i < 2; i++) sigqueue(getpid(), SIGRTMIN + 3, (union sigval){.sival_int = 30 + i});
    pause_here();

    EQUAL(sigaction(SIGUSR1, NULL, &now), 0);
    EXPECT(now.sa_sigaction == note && (now.sa_flags & 0xff) == (SA_SIGINFO & 0xff) && (now.sa_flags & SA_RESTART));
    EXPECT(sigismember(&now.sa_mask, SIGTERM) && !sigismember(&now.sa_mask, SIGHUP));
    sigaction(SIGINT, NULL, &now);
    EXPECT(now.sa_handler == SIG_IGN);
    sigaction(SIGTERM, NULL, &now);
    EXPECT(now.sa_handler == SIG_DFL);
    sigaction(SIGPIPE, NULL, &now);
    EXPECT(now.sa_handler == SIG_DFL);

    pthread_sigmask(SIG_SETMASK, NULL, &set);
    EXPECT(sigismember(&set, SIGUSR1) && sigismember(&set, SIGRTMAX) && !sigismember(&set, SIGUSR2));
    sigpending(&set);
    EXPECT(sigismember(&set, SIGUSR1) && !sigismember(&set, SIGHUP) && !sigismember(&set, SIGTERM));
    siginfo_t info;
    sigset_t one;
    sigemptyset(&one);
    sigaddset(&one, SIGUSR1);
    EQUAL(sigwaitinfo(&one, &info), SIGUSR1);
    EQUAL(info.si_code, SI_USER);
    EQUAL(info.si_pid, getpid());
    EQUAL(seen[SIGUSR1], 0);

    pthread_barrier_wait(&barrier);
    pthread_join(thread, NULL);
    EQUAL(seen[SIGHUP], 1);
    raise(SIGUSR2);
    EQUAL(seen[SIGUSR2], 1);
    sigaction(SIGUSR2, NULL, &now);
    EXPECT(now.sa_handler == SIG_DFL);

    pthread_sigmask(SIG_SETMASK, &before, NULL);
    EQUAL(taken, 6);
    int expected[] = {30, 31, 40, 41, 42, 43};
    EQUAL(seen[SIGRTMIN + 3], 2);
    EQUAL(seen[SIGRTMIN + 4], 4);
    // Handlers of signals that come together are nested, so that the last of them runs first.
    int sum = 0, wanted = 0;
    for (int i = 0; i < 6; i++) sum += order[i], wanted += expected[i];
    EQUAL(sum, wanted);
    return finish();
}
