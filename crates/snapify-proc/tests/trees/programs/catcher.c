// Processes that catch every signal there is, in two threads each, are told of none by being saved and restored.
#include "../../kinds/programs/check.h"

static volatile sig_atomic_t caught, last;

static void note(int signal) {
    caught++;
    last = signal;
}

static void *idle(void *unused) {
    for (;;) pause();
    return unused;
}

static void catch_all(void) {
    struct sigaction action = {.sa_handler = note};
    sigfillset(&action.sa_mask);
    // SIGTRAP is how each step of a remote call is told; glibc keeps two for itself.
    for (int signal = 1; signal <= SIGRTMAX; signal++)
        if (signal != SIGKILL && signal != SIGSTOP && (signal < 32 || signal >= SIGRTMIN))
            EQUAL(sigaction(signal, &action, 0), 0);
    pthread_t thread;
    EQUAL(pthread_create(&thread, 0, idle, 0), 0);
}

int main(void) {
    int ready[2], end[2], status;
    EQUAL(pipe(ready), 0);
    EQUAL(pipe(end), 0);
    int child = fork();
    catch_all();
    if (child == 0) {
        char byte = 0;
        close(end[1]);
        EQUAL(write(ready[1], &byte, 1), 1);
        while (read(end[0], &byte, 1) < 0) {}
        _exit(caught == 0 && failures == 0 ? 17 : 18);
    }
    char byte;
    EQUAL(read(ready[0], &byte, 1), 1);
    pause_here();
    EQUAL(caught, 0);
    EQUAL(last, 0);
    close(end[1]);
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {}
    EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 17);
    EXPECT(caught <= 1 && (caught == 0 || last == SIGCHLD));
    return finish();
}
