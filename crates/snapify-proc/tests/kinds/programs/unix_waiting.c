// What clients have sent before they are accepted.
#include "check.h"
#include <sys/socket.h>
#include <sys/un.h>

static int server(int type, const char *name) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strcpy(address.sun_path, name);
    unlink(name);
    int fd = socket(AF_UNIX, type, 0);
    EQUAL(bind(fd, (void *)&address, sizeof address) | listen(fd, 10), 0);
    return fd;
}

static int client(int type, const char *name) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strcpy(address.sun_path, name);
    int fd = socket(AF_UNIX, type, 0);
    EQUAL(connect(fd, (void *)&address, sizeof address), 0);
    return fd;
}

static int peer_pid(int fd) {
    struct ucred peer = {0};
    socklen_t length = sizeof peer;
    EQUAL(getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length), 0);
    return peer.pid;
}

int main(void) {
    static char out[100000], in[200000];
    for (size_t i = 0; i < sizeof out; i++) out[i] = i * 7 % 251;
    signal(SIGPIPE, SIG_IGN);
    int stream = server(SOCK_STREAM, "waiting"), packets = server(SOCK_SEQPACKET, "packets");
    int first = client(SOCK_STREAM, "waiting"), second = client(SOCK_STREAM, "waiting");
    int third = client(SOCK_STREAM, "waiting"), gone = client(SOCK_STREAM, "waiting");
    EQUAL(write(first, "first", 5), 5);
    fcntl(first, F_SETFL, O_NONBLOCK);
    int again = fcntl(first, F_DUPFD_CLOEXEC, 100), size = 20000;
    EQUAL(write(third, out, sizeof out), sizeof out);
    shutdown(third, SHUT_WR);
    EQUAL(setsockopt(third, SOL_SOCKET, SO_SNDBUF, &size, sizeof size), 0);
    EQUAL(write(gone, "gone", 4), 4);
    close(gone);
    int child = fork();
    if (child == 0) {
        int mine = client(SOCK_STREAM, "waiting");
        EQUAL(write(mine, "child", 5), 5);
        _exit(failures);
    }
    int status;
    EQUAL(waitpid(child, &status, 0), child);
    EQUAL(status, 0);
    int packet = client(SOCK_SEQPACKET, "packets");
    EQUAL(send(packet, "one", 3, 0) + send(packet, "", 0, 0) + send(packet, "three", 5, 0), 8);
    int ended = client(SOCK_SEQPACKET, "packets");
    EQUAL(send(ended, "end", 3, 0), 3);
    shutdown(ended, SHUT_WR);

    pause_here();

    int a = accept(stream, NULL, NULL), b = accept(stream, NULL, NULL), c = accept(stream, NULL, NULL);
    int d = accept(stream, NULL, NULL), e = accept(stream, NULL, NULL);
    EXPECT(a >= 0 && b >= 0 && c >= 0 && d >= 0 && e >= 0);
    fcntl(stream, F_SETFL, O_NONBLOCK);
    EXPECT(accept(stream, NULL, NULL) == -1 && errno == EAGAIN);
    EQUAL(recv(a, in, sizeof in, MSG_DONTWAIT), 5);
    EXPECT(memcmp(in, "first", 5) == 0);
    EQUAL(peer_pid(a), getpid());
    EQUAL(write(a, "answer", 6), 6);
    EQUAL(recv(again, in, sizeof in, MSG_DONTWAIT), 6);
    EQUAL(fcntl(first, F_GETFL), O_RDWR | O_NONBLOCK);
    EQUAL(fcntl(first, F_GETFD), 0);
    EQUAL(fcntl(again, F_GETFD), FD_CLOEXEC);
    EXPECT(recv(b, in, sizeof in, MSG_DONTWAIT) == -1 && errno == EAGAIN);
    EQUAL(write(second, "late", 4), 4);
    EQUAL(recv(b, in, sizeof in, MSG_DONTWAIT), 4);
    size_t have = 0;
    for (ssize_t n; (n = recv(c, in + have, sizeof in, MSG_DONTWAIT)) > 0;) have += n;
    EQUAL(have, sizeof out);
    EXPECT(memcmp(in, out, have) == 0);
    EQUAL(recv(c, in, 1, 0), 0);
    socklen_t length = sizeof size;
    EQUAL(getsockopt(third, SOL_SOCKET, SO_SNDBUF, &size, &length), 0);
    EQUAL(size, 40000);
    EQUAL(recv(d, in, sizeof in, 0), 4);
    EXPECT(memcmp(in, "gone", 4) == 0);
    EQUAL(recv(d, in, sizeof in, 0), 0);
    EQUAL(recv(e, in, sizeof in, 0), 5);
    EXPECT(memcmp(in, "child", 5) == 0);
    EQUAL(recv(e, in, sizeof in, 0), 0);
    int p = accept(packets, NULL, NULL);
    EQUAL(recv(p, in, sizeof in, MSG_DONTWAIT), 3);
    EQUAL(recv(p, in, sizeof in, MSG_DONTWAIT), 0);
    EQUAL(recv(p, in, sizeof in, MSG_DONTWAIT), 5);
    EXPECT(recv(p, in, sizeof in, MSG_DONTWAIT) == -1 && errno == EAGAIN);
    p = accept(packets, NULL, NULL);
    EQUAL(recv(p, in, sizeof in, MSG_DONTWAIT), 3);
    EQUAL(recv(p, in, sizeof in, MSG_DONTWAIT), 0);
    EQUAL(write(p, "back", 4), 4);
    EQUAL(recv(ended, in, sizeof in, MSG_DONTWAIT), 4);
    return finish();
}
