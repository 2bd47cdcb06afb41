// UNIX sockets that lead to somebody else, at the address that is the first argument. The second tells how.
#include "check.h"
#include <sys/socket.h>
#include <sys/un.h>

int main(int argc, char **argv) {
    if (argc < 3) return 9;
    struct sockaddr_un there = {.sun_family = AF_UNIX};
    strncpy(there.sun_path, argv[1], sizeof there.sun_path - 1);
    int is_log = strcmp(argv[2], "log") == 0;
    int bind_it = strcmp(argv[2], "bind") == 0;
    int fd = socket(AF_UNIX, is_log ? SOCK_DGRAM : SOCK_STREAM, 0);
    if (bind_it) {
        EQUAL(bind(fd, (void *)&there, sizeof there), 0);
        EQUAL(listen(fd, 1), 0);
    } else {
        EQUAL(connect(fd, (void *)&there, sizeof there), 0);
    }
    if (is_log) EQUAL(send(fd, "before", 6, 0), 6);

    pause_here();

    if (is_log) EQUAL(send(fd, "after", 5, 0), 5);
    if (bind_it) {
        int client = socket(AF_UNIX, SOCK_STREAM, 0);
        EQUAL(connect(client, (void *)&there, sizeof there), 0);
    }
    return finish();
}
