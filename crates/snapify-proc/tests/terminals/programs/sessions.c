// A session on a pseudo-terminal of the tree: its controlling terminal, its jobs in foreground and background, and the
// signals that come from the terminal.
#include "../../kinds/programs/check.h"
#include <pty.h>
#include <sys/ioctl.h>
#include <termios.h>

static volatile sig_atomic_t resized, hung_up;
static void on_winch(int sig) { (void)sig; resized = 1; }
static void on_hup(int sig) { (void)sig; hung_up = 1; }

static void say(int to, char what) { EQUAL(write(to, &what, 1), 1); }

static char hear(int from) {
    char c = 0;
    while (read(from, &c, 1) < 0 && errno == EINTR) {}
    return c;
}

// The leader of the session, told by `orders` what to look at.
static int leader(int orders, int answers, int reader_orders) {
    signal(SIGWINCH, on_winch);
    signal(SIGHUP, on_hup);
    signal(SIGTTOU, SIG_IGN);
    int tty = open("/dev/tty", O_RDWR | O_CLOEXEC);
    EXPECT(tty >= 0);
    // A job that waits in the foreground, one in the background that will read from the terminal.
    int job = fork();
    if (job == 0) {
        setpgid(0, 0);
        signal(SIGWINCH, SIG_DFL);
        signal(SIGHUP, SIG_DFL);
        for (;;) pause();
    }
    setpgid(job, job);
    int background = fork();
    if (background == 0) {
        char c;
        setpgid(0, 0);
        signal(SIGHUP, SIG_DFL);
        hear(reader_orders);
        if (read(0, &c, 1) != 1) _exit(9);
        _exit(c);
    }
    setpgid(background, background);
    EQUAL(tcsetpgrp(tty, job), 0);
    say(answers, 'r');

    EQUAL(hear(orders), '1');
    EQUAL(tcgetpgrp(0), job);
    EQUAL(tcgetpgrp(tty), job);
    EQUAL(tcgetsid(0), getpid());
    EQUAL(getsid(job), getpid());
    EXPECT(fcntl(tty, F_GETFD) & FD_CLOEXEC);
    int again = open("/dev/tty", O_RDWR);
    EXPECT(again >= 0);
    close(again);
    say(answers, failures ? 'x' : 'a');
    // The parent types ^C.
    int status;
    while (waitpid(job, &status, 0) < 0 && errno == EINTR) {}
    EXPECT(WIFSIGNALED(status) && WTERMSIG(status) == SIGINT);
    say(answers, failures ? 'x' : 'b');

    // The background job gets its order from the parent, reads, and is stopped for it.
    while (waitpid(background, &status, WUNTRACED) < 0 && errno == EINTR) {}
    EXPECT(WIFSTOPPED(status) && WSTOPSIG(status) == SIGTTIN);
    EQUAL(tcsetpgrp(0, background), 0);
    EQUAL(kill(-background, SIGCONT), 0);
    say(answers, failures ? 'x' : 'c');
    while (waitpid(background, &status, 0) < 0 && errno == EINTR) {}
    EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 'k');
    EQUAL(tcsetpgrp(0, getpgrp()), 0);
    say(answers, failures ? 'x' : 'd');
    while (!resized) usleep(1000);
    say(answers, 'e');
    while (!hung_up) usleep(1000);
    say(answers, 'f');
    return failures;
}

int main(void) {
    int orders[2], answers[2], reader[2], master;
    EQUAL(pipe(orders), 0);
    EQUAL(pipe(answers), 0);
    EQUAL(pipe(reader), 0);
    struct winsize size = {20, 70, 0, 0};
    int child = forkpty(&master, NULL, NULL, &size);
    if (child == 0) _exit(leader(orders[0], answers[1], reader[0]));
    EQUAL(hear(answers[0]), 'r');
    pause_here();
    EQUAL(getsid(child), child);
    say(orders[1], '1');
    EQUAL(hear(answers[0]), 'a');
    say(master, 3);
    EQUAL(hear(answers[0]), 'b');
    say(reader[1], '2');
    EQUAL(hear(answers[0]), 'c');
    EQUAL(write(master, "k\n", 2), 2);
    EQUAL(hear(answers[0]), 'd');
    size.ws_row = 40;
    EQUAL(ioctl(master, TIOCSWINSZ, &size), 0);
    EQUAL(hear(answers[0]), 'e');
    close(master);
    EQUAL(hear(answers[0]), 'f');
    int status;
    EQUAL(waitpid(child, &status, 0), child);
    EQUAL(status, 0);
    return finish();
}
