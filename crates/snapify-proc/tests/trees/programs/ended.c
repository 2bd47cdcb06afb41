// Children that have ended in every way, and that nobody has asked for yet.
#include "../../kinds/programs/check.h"

static int child_that(int signal, int code) {
    int pid = fork();
    if (pid == 0) {
        if (signal) raise(signal);
        _exit(code);
    }
    siginfo_t info;
    EQUAL(waitid(P_PID, pid, &info, WEXITED | WNOWAIT), 0);
    return pid;
}

int main(void) {
    struct rlimit none = {0, 0};
    setrlimit(RLIMIT_CORE, &none);
    const int signals[] = {0, SIGKILL, SIGSEGV, SIGTERM, SIGRTMIN + 1};
    int children[5];
    for (int i = 0; i < 5; i++) children[i] = child_that(signals[i], i + 3);
    pause_here();
    for (int i = 4; i >= 0; i--) {
        int status;
        EQUAL(waitpid(children[i], &status, 0), children[i]);
        EQUAL(WIFEXITED(status) ? 0 : WTERMSIG(status), signals[i]);
        if (!signals[i]) EQUAL(WEXITSTATUS(status), 3);
    }
    EQUAL(waitpid(-1, 0, WNOHANG), -1);
    return finish();
}
