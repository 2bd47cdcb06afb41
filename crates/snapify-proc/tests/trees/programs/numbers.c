// Descriptors have the greatest number that the limit allows.
#include "../../kinds/programs/check.h"

int main(void) {
    struct rlimit limit;
    EQUAL(getrlimit(RLIMIT_NOFILE, &limit), 0);
    if (limit.rlim_max > 4096) limit.rlim_max = 4096;
    limit.rlim_cur = limit.rlim_max;
    EQUAL(setrlimit(RLIMIT_NOFILE, &limit), 0);
    int highest = (int)limit.rlim_max - 1, ends[2];
    EQUAL(pipe(ends), 0);
    EQUAL(dup2(ends[0], highest), highest);
    EQUAL(fcntl(highest, F_SETFD, FD_CLOEXEC), 0);
    EQUAL(dup2(ends[1], highest - 1), highest - 1);
    EQUAL(dup2(ends[1], 1000), 1000);
    close(ends[0]);
    close(ends[1]);
    EQUAL(write(1000, "x", 1), 1);
    pause_here();
    char byte = 0;
    EQUAL(read(highest, &byte, 1), 1);
    EQUAL(byte, 'x');
    EQUAL(fcntl(highest, F_GETFD), FD_CLOEXEC);
    EQUAL(fcntl(highest - 1, F_GETFD), 0);
    EQUAL(write(highest - 1, "y", 1), 1);
    EQUAL(read(highest, &byte, 1), 1);
    EQUAL(byte, 'y');
    // Nothing else is open.
    int open = 0;
    for (int fd = 3; fd <= highest; fd++) open += fcntl(fd, F_GETFD) >= 0;
    EQUAL(open, 3);
    struct rlimit now;
    EQUAL(getrlimit(RLIMIT_NOFILE, &now), 0);
    EQUAL(now.rlim_cur, limit.rlim_cur);
    EQUAL(now.rlim_max, limit.rlim_max);
    return finish();
}
