// Sets up one thing that cannot be saved, named by its argument, and expects that it still works after it was refused.
#include "check.h"
#include <linux/aio_abi.h>
#include <linux/filter.h>
#include <linux/io_uring.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/seccomp.h>
#include <linux/userfaultfd.h>
#include <mqueue.h>
#include <sys/inotify.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>

static int is(const char *kind, const char *wanted) { return strcmp(kind, wanted) == 0; }

static void *other_credentials(void *barrier) {
    syscall(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    pthread_barrier_wait(barrier);
    pause();
    return NULL;
}

static void *own_directory(void *barrier) {
    EQUAL(unshare(CLONE_FS), 0);
    pthread_barrier_wait(barrier);
    pause();
    return NULL;
}

static void *plain(void *barrier) {
    pthread_barrier_wait(barrier);
    pause();
    return NULL;
}

static void start(void *(*function)(void *)) {
    static pthread_barrier_t barrier;
    pthread_t thread;
    pthread_barrier_init(&barrier, NULL, 2);
    pthread_create(&thread, NULL, function, &barrier);
    pthread_barrier_wait(&barrier);
}

static int set_up(const char *kind) {
    int pair[2] = {-1, -1};
    if (is(kind, "udplite")) return socket(AF_INET, SOCK_DGRAM, 136);
    if (is(kind, "netlink")) {
        struct { struct nlmsghdr header; struct rtgenmsg body; } ask = {
            {sizeof ask, RTM_GETLINK, NLM_F_REQUEST | NLM_F_DUMP, 1, 0}, {AF_UNSPEC}};
        int fd = socket(AF_NETLINK, SOCK_RAW, NETLINK_ROUTE);
        return send(fd, &ask, sizeof ask, 0) < 0 ? -1 : fd;
    }
    if (is(kind, "handed")) {
        union { char bytes[64]; struct cmsghdr aligned; } control = {0};
        struct iovec vector = {"x", 1};
        struct msghdr header = {.msg_iov = &vector, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = CMSG_SPACE(4)};
        int self = syscall(SYS_pidfd_open, getpid(), 0);
        control.aligned = (struct cmsghdr){CMSG_LEN(4), SOL_SOCKET, SCM_RIGHTS};
        memcpy(CMSG_DATA(&control.aligned), &self, 4);
        return socketpair(AF_UNIX, SOCK_STREAM, 0, pair) ?: sendmsg(pair[0], &header, 0) == 1 ? self : -1;
    }
    if (is(kind, "filter")) {
        struct sock_filter pass = {BPF_RET | BPF_K, 0, 0, 100};
        struct sock_fprog program = {1, &pass};
        return socketpair(AF_UNIX, SOCK_DGRAM, 0, pair) ?:
            setsockopt(pair[0], SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program) ?: pair[0];
    }
    if (is(kind, "unread")) {
        struct sockaddr_un any = {.sun_family = AF_UNIX};
        socklen_t length = sizeof any;
        int server = socket(AF_UNIX, SOCK_STREAM, 0), client = socket(AF_UNIX, SOCK_STREAM, 0);
        if (bind(server, (void *)&any, sizeof any.sun_family) || listen(server, 1)) return -1;
        getsockname(server, (void *)&any, &length);
        // Watched by epoll, so that it cannot be replaced.
        struct epoll_event event = {EPOLLIN, {.fd = client}};
        if (epoll_ctl(epoll_create1(0), EPOLL_CTL_ADD, client, &event)) return -1;
        return connect(client, (void *)&any, length) ?: write(client, "x", 1) == 1 ? client : -1;
    }
    if (is(kind, "watched-and-gone")) {
        int fd = inotify_init(), file = open("watched", O_RDWR | O_CREAT, 0600);
        return inotify_add_watch(fd, "watched", IN_MODIFY) == -1 ? -1 : unlink("watched") ?: file ? fd : -1;
    }
    if (is(kind, "pidfd")) return syscall(SYS_pidfd_open, getppid(), 0);
    if (is(kind, "userfaultfd")) return syscall(SYS_userfaultfd, UFFD_USER_MODE_ONLY);
    if (is(kind, "io_uring")) {
        struct io_uring_params parameters = {0};
        return syscall(SYS_io_uring_setup, 4, &parameters);
    }
    if (is(kind, "namespace")) {
        int child, kept[2], fd;
        if (pipe(kept)) return -1;
        if ((child = fork()) == 0) {
            char ok = unshare(CLONE_NEWUSER | CLONE_NEWNET) == 0;
            if (write(kept[1], &ok, 1) == 1) pause();
            _exit(0);
        }
        char path[64], ok = 0;
        snprintf(path, sizeof path, "/proc/%d/ns/net", child);
        fd = read(kept[0], &ok, 1) == 1 && ok ? open(path, O_RDONLY) : -1;
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
        close(kept[0]);
        close(kept[1]);
        return fd;
    }
    if (is(kind, "notify")) {
        int fd = open(".", O_RDONLY | O_DIRECTORY);
        signal(SIGIO, SIG_IGN);
        return fcntl(fd, F_NOTIFY, DN_CREATE | DN_MULTISHOT) ?: fd;
    }
    if (is(kind, "queue")) {
        mqd_t queue = mq_open("/snapify-test", O_RDWR | O_CREAT, 0600, NULL);
        mq_unlink("/snapify-test");
        struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1};
        return mq_notify(queue, &event) ?: queue;
    }
    if (is(kind, "async")) {
        return pipe(pair) ?: fcntl(pair[0], F_SETOWN, getppid()) ?: fcntl(pair[0], F_SETSIG, SIGURG) ?: fcntl(pair[0], F_SETFL, O_ASYNC) ?: pair[0];
    }
    if (is(kind, "other-process")) return open("/proc/1/status", O_RDONLY);
    if (is(kind, "seccomp")) {
        struct sock_filter allow = {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW};
        struct sock_fprog filter = {1, &allow};
        return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ?: prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter);
    }
    if (is(kind, "strict")) {
        // From now on nothing but read, write and exit.
        if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT)) return -1;
        char line;
        int told = write(1, "ready\n", 6) == 6;
        while (read(0, &line, 1) == 1 && line != '\n') {}
        syscall(SYS_exit, told && write(1, "fine\n", 5) == 5 ? 0 : 1);
    }
    if (is(kind, "thread-credentials")) return start(other_credentials), 0;
    if (is(kind, "thread-directory")) return start(own_directory), 0;
    if (is(kind, "thread-clock")) {
        start(plain);
        int id;
        struct sigevent none = {.sigev_notify = SIGEV_NONE};
        return syscall(SYS_timer_create, CLOCK_THREAD_CPUTIME_ID, &none, &id);
    }
    if (is(kind, "aio")) {
        static aio_context_t context;
        return syscall(SYS_io_setup, 4, &context);
    }
    if (is(kind, "secret")) return syscall(SYS_memfd_secret, 0);
    if (is(kind, "secret-mapping")) {
        int secret = syscall(SYS_memfd_secret, 0);
        if (secret == -1 || ftruncate(secret, 4096) != 0) return -1;
        char *memory = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, secret, 0);
        close(secret);
        return memory == MAP_FAILED ? -1 : 0;
    }
    return -1;
}

int main(int argc, char **argv) {
    int fd = argc > 1 ? set_up(argv[1]) : -1;
    for (int i = 2; i < argc; i++) set_up(argv[i]);
    if (fd == -1) {
        printf("not here: %s (errno %d)\n", argv[1], errno);
        return 0;
    }
    pause_here();
    if (fd > 2) EXPECT(fcntl(fd, F_GETFD) != -1);
    return finish();
}
