// A child that job control has stopped stays so until it is told to go on.
#include "../../kinds/programs/check.h"

static char state_of(int pid) {
    char path[64], state = '?';
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *stat = fopen(path, "r");
    if (!stat) return state;
    EQUAL(fscanf(stat, "%*d %*s %c", &state), 1);
    fclose(stat);
    return state;
}

int main(void) {
    int child = fork();
    if (child == 0) {
        setpgid(0, 0);
        raise(SIGSTOP);
        _exit(31);
    }
    int status;
    EQUAL(waitpid(child, &status, WUNTRACED), child);
    EXPECT(WIFSTOPPED(status));
    pause_here();
    // A restored one stops as it is let go.
    while (state_of(child) == 'R') sched_yield();
    EQUAL(state_of(child), 'T');
    EQUAL(kill(child, SIGCONT), 0);
    EQUAL(waitpid(child, &status, 0), child);
    EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 31);
    return finish();
}
