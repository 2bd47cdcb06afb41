// A process that shares descriptors and directories with its grandparent, and a parent between them that shares them no more.
#include "../../kinds/programs/check.h"

enum { NUMBER = 200 };

static int ask[2][2], answer[2][2];

// How the file with that number and the working directory look from here.
static char look(void) {
    char path[PATH_MAX] = "";
    int there = fcntl(NUMBER, F_GETFD) != -1, top = getcwd(path, sizeof path) && !strcmp(path, "/");
    return (char)('0' + there + 2 * top);
}

static void serve(int who) {
    alarm(300);
    char byte = 'r';
    do {
        if (write(answer[who][1], &byte, 1) != 1) _exit(1);
        if (read(ask[who][0], &byte, 1) != 1) _exit(2);
        byte = look();
    } while (1);
}

static char hear(int who) {
    char byte = 0;
    EQUAL(read(answer[who][0], &byte, 1), 1);
    return byte;
}

static char query(int who) {
    EQUAL(write(ask[who][1], "?", 1), 1);
    return hear(who);
}

static int clone_sharing(void) { return (int)syscall(SYS_clone, SIGCHLD | CLONE_FILES | CLONE_FS, 0, 0, 0, 0); }

int main(void) {
    for (int who = 0; who < 2; who++) {
        EQUAL(pipe(ask[who]), 0);
        EQUAL(pipe(answer[who]), 0);
    }
    int child = clone_sharing();
    if (child == 0) {
        if (clone_sharing() == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            serve(1);
        }
        if (unshare(CLONE_FILES | CLONE_FS)) _exit(3);
        serve(0);
    }
    EQUAL(hear(0), 'r');
    EQUAL(hear(1), 'r');
    pause_here();
    EQUAL(query(0), '0');
    EQUAL(query(1), '0');
    EQUAL(dup2(0, NUMBER), NUMBER);
    EQUAL(chdir("/"), 0);
    EQUAL(query(0), '0');
    EQUAL(query(1), '3');
    kill(child, SIGKILL);
    EQUAL(waitpid(child, 0, 0), child);
    return finish();
}
