// A test program sets something up, calls pause_here(), and looks whether all of it is still there.
// pause_here() says "ready" and waits for a line on standard input: meanwhile it is saved, killed and restored.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static int failures;

#define EXPECT(condition)                                                                                   \
    do {                                                                                                    \
        errno = 0;                                                                                          \
        if (!(condition)) {                                                                                 \
            printf("%s:%d: not so: %s (errno %d)\n", __FILE__, __LINE__, #condition, errno);                \
            failures++;                                                                                     \
        }                                                                                                   \
    } while (0)

#define EQUAL(a, b)                                                                                         \
    do {                                                                                                    \
        long long left = (long long)(a), right = (long long)(b);                                            \
        if (left != right) {                                                                                \
            printf("%s:%d: %s is %lld, not %lld (errno %d)\n", __FILE__, __LINE__, #a, left, right, errno); \
            failures++;                                                                                     \
        }                                                                                                   \
    } while (0)

__attribute__((unused)) static void pause_here(void) {
    char line[64];
    if (failures) exit(1);
    printf("ready\n");
    fflush(stdout);
    // Interrupted reads are restarted by the kernel or, with handlers, by us.
    size_t have = 0;
    while (have == 0 || line[have - 1] != '\n') {
        ssize_t n = read(0, line + have, sizeof line - have);
        if (n > 0) have += n;
        else if (n == 0) exit(2);
        else if (errno != EINTR) exit(3);
    }
}

static int finish(void) {
    printf(failures ? "failed\n" : "fine\n");
    fflush(stdout);
    return failures ? 1 : 0;
}
