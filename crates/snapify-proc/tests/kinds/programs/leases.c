// Leases that are being taken back: somebody opens the files, the holder has been told, and has not given way yet.
#include "check.h"

static volatile sig_atomic_t told, last_fd;

static void handler(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)context;
    told++;
    last_fd = info->si_fd;
}

static int lease(const char *name, int access, int kind) {
    int fd = open(name, access | O_CREAT, 0600);
    EXPECT(fd >= 0);
    EQUAL(fcntl(fd, F_SETLEASE, kind), 0);
    EQUAL(fcntl(fd, F_SETSIG, SIGRTMIN + 1), 0);
    return fd;
}

static void is_refused(const char *name, int access) {
    EQUAL(open(name, access | O_NONBLOCK), -1);
    EQUAL(errno, EWOULDBLOCK);
}

int main(void) {
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO | SA_RESTART};
    EQUAL(sigaction(SIGRTMIN + 1, &action, 0), 0);
    int read_by_another = lease("lease-1", O_RDWR, F_WRLCK);
    int written_by_another = lease("lease-2", O_RDWR, F_WRLCK);
    int shared = lease("lease-3", O_RDONLY, F_RDLCK);
    is_refused("lease-1", O_RDONLY);
    is_refused("lease-2", O_WRONLY);
    EQUAL(last_fd, written_by_another);
    is_refused("lease-3", O_WRONLY);
    EQUAL(told, 3);
    pause_here();

    EQUAL(told, 3);
    EQUAL(fcntl(read_by_another, F_GETLEASE), F_RDLCK);
    EQUAL(fcntl(written_by_another, F_GETLEASE), F_UNLCK);
    EQUAL(fcntl(shared, F_GETLEASE), F_UNLCK);
    EQUAL(fcntl(shared, F_GETSIG), SIGRTMIN + 1);
    EQUAL(fcntl(shared, F_GETOWN), getpid());
    // They give way.
    EQUAL(fcntl(read_by_another, F_SETLEASE, F_UNLCK), 0);
    EQUAL(fcntl(written_by_another, F_SETLEASE, F_UNLCK), 0);
    EQUAL(fcntl(shared, F_SETLEASE, F_UNLCK), 0);
    EXPECT(open("lease-1", O_RDONLY | O_NONBLOCK) >= 0);
    EXPECT(open("lease-2", O_WRONLY | O_NONBLOCK) >= 0);
    EXPECT(open("lease-3", O_WRONLY | O_NONBLOCK) >= 0);
    EQUAL(told, 3);
    for (int n = 1; n <= 3; n++) {
        char name[16];
        snprintf(name, sizeof name, "lease-%d", n);
        EQUAL(unlink(name), 0);
    }
    return finish();
}
