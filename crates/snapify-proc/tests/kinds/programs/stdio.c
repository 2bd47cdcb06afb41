// Its argument says what is tried with standard streams.
#include "check.h"
#include <termios.h>

static int nonblocking(int fd) { return (fcntl(fd, F_GETFL) & O_NONBLOCK) != 0; }

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    int again = dup(1), tty = -1, opened = -1;
    fcntl(again, F_SETFD, FD_CLOEXEC);
    if (strcmp(what, "terminal") == 0) {
        tty = open("/dev/tty", O_RDWR);
        opened = open(ttyname(1), O_WRONLY | O_NOCTTY | O_CLOEXEC);
        EXPECT(tty >= 0 && opened >= 0);
    }
    if (strcmp(what, "nonblocking") == 0) fcntl(1, F_SETFL, fcntl(1, F_GETFL) | O_NONBLOCK);
    pause_here();
    EXPECT(fcntl(again, F_GETFD) == FD_CLOEXEC && fcntl(1, F_GETFD) == 0);
    struct stat a, b;
    EXPECT(fstat(1, &a) == 0 && fstat(again, &b) == 0);
    EQUAL(a.st_ino, b.st_ino);
    EQUAL(write(again, "", 0), 0);
    if (strcmp(what, "nonblocking") == 0) EXPECT(nonblocking(1) && nonblocking(again));
    if (strcmp(what, "terminal") == 0) {
        EXPECT(isatty(0) && isatty(1) && isatty(tty) && isatty(opened));
        EQUAL(write(tty, "through tty\n", 12), 12);
        EQUAL(write(opened, "opened again\n", 13), 13);
    }
    return finish();
}
