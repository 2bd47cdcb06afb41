// Descriptors of processes and threads, and of the process's own namespaces.
#include "check.h"
#include <linux/nsfs.h>

#ifndef PIDFD_THREAD
#define PIDFD_THREAD O_EXCL
#endif

static int open_pidfd(pid_t pid, int flags) { return syscall(SYS_pidfd_open, pid, flags); }
static int tell(int pidfd, int signal) { return syscall(SYS_pidfd_send_signal, pidfd, signal, NULL, 0); }

static int readable(int fd) {
    struct pollfd poller = {.fd = fd, .events = POLLIN};
    return poll(&poller, 1, 0) == 1 && poller.revents & POLLIN;
}

static int process_of(int pidfd) {
    char line[256];
    int pid = -2;
    snprintf(line, sizeof line, "/proc/self/fdinfo/%d", pidfd);
    FILE *file = fopen(line, "r");
    while (fgets(line, sizeof line, file)) sscanf(line, "Pid: %d", &pid);
    fclose(file);
    return pid;
}

static volatile int told;
static void note(int signal) { told = signal; }

static volatile pid_t thread_id;
static pthread_barrier_t barrier;
static void *thread(void *unused) {
    thread_id = syscall(SYS_gettid);
    pthread_barrier_wait(&barrier);
    pthread_barrier_wait(&barrier);
    return unused;
}

int main(void) {
    pid_t child = fork();
    if (child == 0) _exit(3);
    int ended = open_pidfd(child, 0);
    waitpid(child, NULL, 0);
    int self = open_pidfd(getpid(), O_NONBLOCK);
    pthread_t other;
    pthread_barrier_init(&barrier, NULL, 2);
    pthread_create(&other, NULL, thread, NULL);
    pthread_barrier_wait(&barrier);
    int of_thread = open_pidfd(thread_id, PIDFD_THREAD);  // Linux 6.9
    int alias = dup2(self, 77);
    int net = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC), user = open("/proc/self/ns/user", O_RDONLY);
    struct stat before, now;
    fstat(net, &before);
    pause_here();

    EQUAL(process_of(self), getpid());
    EQUAL(process_of(alias), getpid());
    EQUAL(fcntl(self, F_GETFD), FD_CLOEXEC);
    EQUAL(fcntl(alias, F_GETFD), 0);
    EQUAL(fcntl(self, F_GETFL) & O_NONBLOCK, O_NONBLOCK);
    signal(SIGUSR1, note);
    EQUAL(tell(self, SIGUSR1), 0);
    EQUAL(told, SIGUSR1);
    EXPECT(!readable(self));
    int copy = syscall(SYS_pidfd_getfd, self, ended, 0);
    EXPECT(copy > 0);
    EQUAL(process_of(ended), -1);
    EXPECT(readable(ended) && readable(copy));
    EQUAL(tell(ended, 0), -1);
    EQUAL(errno, ESRCH);
    if (of_thread >= 0) {
        EQUAL(process_of(of_thread), thread_id);
        EXPECT(!readable(of_thread));
    }
    pthread_barrier_wait(&barrier);
    pthread_join(other, NULL);
    if (of_thread >= 0) EXPECT(readable(of_thread));
    EQUAL(fstat(net, &now), 0);
    EXPECT(now.st_ino == before.st_ino);
    EQUAL(fcntl(net, F_GETFD), FD_CLOEXEC);
    EQUAL(ioctl(net, NS_GET_NSTYPE), CLONE_NEWNET);
    EQUAL(ioctl(user, NS_GET_NSTYPE), CLONE_NEWUSER);
    EQUAL(stat("/proc/self/ns/user", &before), 0);
    fstat(user, &now);
    EXPECT(now.st_ino == before.st_ino);
    return finish();
}
