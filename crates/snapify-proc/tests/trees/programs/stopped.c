// Children that job control has stopped stay so until they are told to go on, and their parent is told once only of each stop, by the
// signal that it was, and of each that goes on.
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

static volatile sig_atomic_t continued;

static void note_continued(int signal) {
    (void)signal;
    continued++;
}

static int stopped_child(int code, int threads, int by) {
    int child = fork();
    if (child == 0) {
        pthread_t thread;
        sigset_t only;
        sigemptyset(&only);
        sigaddset(&only, SIGCONT);
        // The handler is to have run when this thread goes on.
        pthread_sigmask(SIG_BLOCK, &only, 0);
        for (int i = 0; i < threads; i++) pthread_create(&thread, 0, idle, 0);
        setpgid(0, 0);
        signal(SIGCONT, note_continued);
        pthread_sigmask(SIG_UNBLOCK, &only, 0);
        raise(by);
        while (code < 0) pause();
        _exit(continued == 1 ? code : 1);
    }
    siginfo_t info;
    int waited;
    do waited = waitid(P_PID, child, &info, WSTOPPED | WNOWAIT);
    while (waited != 0 && errno == EINTR);
    EQUAL(waited, 0);
    return child;
}

static char state_of(int pid) {
    char path[64], line[512], state = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *file = fopen(path, "r");
    if (file && fgets(line, sizeof line, file)) sscanf(strrchr(line, ')') + 1, " %c", &state);
    if (file) fclose(file);
    return state;
}

int main(void) {
    struct sigaction action = {.sa_handler = count, .sa_flags = SA_RESTART};
    sigaction(SIGCHLD, &action, 0);
    int known = stopped_child(31, 0, SIGSTOP), unknown = stopped_child(32, 2, SIGSTOP), status;
    int by_user = stopped_child(33, 0, SIGTSTP), by_terminal = stopped_child(34, 1, SIGTTIN);
    int goes_on = stopped_child(-1, 0, SIGSTOP), goes_on_known = stopped_child(-1, 0, SIGTTOU);
    siginfo_t info = {0};
    EQUAL(kill(goes_on, SIGCONT), 0);
    EQUAL(waitid(P_PID, goes_on, &info, WCONTINUED | WNOWAIT), 0);
    EQUAL(kill(goes_on_known, SIGCONT), 0);
    EQUAL(waitpid(goes_on_known, &status, WCONTINUED), goes_on_known);
    EXPECT(WIFCONTINUED(status));
    EQUAL(waitpid(known, &status, WUNTRACED), known);
    EXPECT(WIFSTOPPED(status));
    // That they go on is told by them when they run.
    while (state_of(goes_on) != 'S' || state_of(goes_on_known) != 'S') usleep(1000);
    int before = told;
    pause_here();
    EQUAL(told, before);
    // One stop was waited for, the other was not.
    EQUAL(waitpid(known, &status, WUNTRACED | WNOHANG), 0);
    EQUAL(waitpid(unknown, &status, WUNTRACED | WNOHANG), unknown);
    EXPECT(WIFSTOPPED(status) && WSTOPSIG(status) == SIGSTOP);
    EQUAL(waitpid(unknown, &status, WUNTRACED | WNOHANG), 0);
    EQUAL(waitpid(by_user, &status, WUNTRACED | WNOHANG), by_user);
    EXPECT(WIFSTOPPED(status) && WSTOPSIG(status) == SIGTSTP);
    EQUAL(waitpid(by_terminal, &status, WUNTRACED | WNOHANG), by_terminal);
    EXPECT(WIFSTOPPED(status) && WSTOPSIG(status) == SIGTTIN);
    EQUAL(waitpid(-1, &status, WUNTRACED | WNOHANG), 0);
    EQUAL(waitpid(-1, &status, WCONTINUED | WNOHANG), goes_on);
    EXPECT(WIFCONTINUED(status));
    EQUAL(waitpid(-1, &status, WCONTINUED | WNOHANG), 0);
    EQUAL(kill(known, SIGCONT), 0);
    EQUAL(kill(unknown, SIGCONT), 0);
    EQUAL(waitpid(known, &status, 0), known);
    EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 31);
    EQUAL(waitpid(unknown, &status, 0), unknown);
    EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 32);
    EQUAL(kill(by_user, SIGCONT), 0);
    EQUAL(kill(by_terminal, SIGCONT), 0);
    EQUAL(waitpid(by_user, &status, 0), by_user);
    EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 33);
    EQUAL(waitpid(by_terminal, &status, 0), by_terminal);
    EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 34);
    EQUAL(kill(goes_on, SIGTERM), 0);
    EQUAL(kill(goes_on_known, SIGTERM), 0);
    EQUAL(waitpid(goes_on, &status, 0), goes_on);
    EXPECT(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
    EQUAL(waitpid(goes_on_known, &status, 0), goes_on_known);
    EXPECT(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
    return finish();
}
