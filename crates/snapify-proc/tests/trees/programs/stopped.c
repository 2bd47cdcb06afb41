// Children that job control has stopped stay so until they are told to go on, and their parent is told of each stop once only.
#include "../../kinds/programs/check.h"

static volatile sig_atomic_t told;

static void count(int signal) {
    (void)signal;
    told++;
}

static void *idle(void *unused) {
    for (;;) pause();
    return unused;
}

static int stopped_child(int code, int threads) {
    int child = fork();
    if (child == 0) {
        pthread_t thread;
        for (int i = 0; i < threads; i++) pthread_create(&thread, 0, idle, 0);
        setpgid(0, 0);
        raise(SIGSTOP);
        _exit(code);
    }
    siginfo_t info;
    int waited;
    do waited = waitid(P_PID, child, &info, WSTOPPED | WNOWAIT);
    while (waited != 0 && errno == EINTR);
    EQUAL(waited, 0);
    return child;
}

int main(void) {
    struct sigaction action = {.sa_handler = count, .sa_flags = SA_RESTART};
    sigaction(SIGCHLD, &action, 0);
    int known = stopped_child(31, 0), unknown = stopped_child(32, 2), status;
    EQUAL(waitpid(known, &status, WUNTRACED), known);
    EXPECT(WIFSTOPPED(status));
    int before = told;
    pause_here();
    EQUAL(told, before);
    // One stop was waited for, the other was not.
    EQUAL(waitpid(known, &status, WUNTRACED | WNOHANG), 0);
    EQUAL(waitpid(unknown, &status, WUNTRACED | WNOHANG), unknown);
    EXPECT(WIFSTOPPED(status) && WSTOPSIG(status) == SIGSTOP);
    EQUAL(waitpid(unknown, &status, WUNTRACED | WNOHANG), 0);
    EQUAL(kill(known, SIGCONT), 0);
    EQUAL(kill(unknown, SIGCONT), 0);
    EQUAL(waitpid(known, &status, 0), known);
    EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 31);
    EQUAL(waitpid(unknown, &status, 0), unknown);
    EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 32);
    return finish();
}
