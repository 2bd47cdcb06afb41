// Descriptors and credentials on their way through UNIX sockets.
#include "check.h"
#include <sys/socket.h>
#include <sys/un.h>
#include <netinet/in.h>

static void send_fds(int socket, const char *text, const int *fds, int count, const struct ucred *sender) {
    union { char bytes[2000]; struct cmsghdr aligned; } control = {0};
    struct iovec vector = {(void *)text, strlen(text)};
    struct msghdr header = {.msg_iov = &vector, .msg_iovlen = 1, .msg_control = &control};
    struct cmsghdr *message = (void *)&control;
    if (count) {
        *message = (struct cmsghdr){CMSG_LEN(count * 4), SOL_SOCKET, SCM_RIGHTS};
        memcpy(CMSG_DATA(message), fds, count * 4);
        header.msg_controllen += CMSG_SPACE(count * 4);
    }
    if (sender) {
        message = (void *)(control.bytes + header.msg_controllen);
        *message = (struct cmsghdr){CMSG_LEN(sizeof *sender), SOL_SOCKET, SCM_CREDENTIALS};
        memcpy(CMSG_DATA(message), sender, sizeof *sender);
        header.msg_controllen += CMSG_SPACE(sizeof *sender);
    }
    if (!header.msg_controllen) header.msg_control = NULL;
    EQUAL(sendmsg(socket, &header, 0), strlen(text));
}

static int receive_fds(int socket, const char *text, int *fds, struct ucred *sender) {
    union { char bytes[2000]; struct cmsghdr aligned; } control = {0};
    char in[100] = "";
    struct iovec vector = {in, strlen(text) ?: sizeof in};
    struct msghdr header = {.msg_iov = &vector, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    EQUAL(recvmsg(socket, &header, MSG_DONTWAIT), strlen(text));
    EXPECT(memcmp(in, text, strlen(text)) == 0);
    int count = 0;
    for (struct cmsghdr *m = CMSG_FIRSTHDR(&header); m; m = CMSG_NXTHDR(&header, m)) {
        if (m->cmsg_type == SCM_RIGHTS) {
            count = (m->cmsg_len - CMSG_LEN(0)) / 4;
            memcpy(fds, CMSG_DATA(m), count * 4);
        } else if (m->cmsg_type == SCM_CREDENTIALS && sender) {
            memcpy(sender, CMSG_DATA(m), sizeof *sender);
        }
    }
    return count;
}

int main(void) {
    int stream[2], datagrams[2], fds[300], got[300];
    char in[100];
    EQUAL(socketpair(AF_UNIX, SOCK_STREAM, 0, stream), 0);
    EQUAL(socketpair(AF_UNIX, SOCK_DGRAM, 0, datagrams), 0);

    // A file that somebody has open, one that nobody has, one that has no name; ends of pipes; a counter.
    int kept = open("kept", O_RDWR | O_CREAT | O_TRUNC, 0600);
    EQUAL(write(kept, "0123456789", 10), 10);
    lseek(kept, 3, SEEK_SET);
    int sent = open("kept", O_RDONLY | O_APPEND);
    lseek(sent, 5, SEEK_SET);
    int nameless = open("nameless", O_RDWR | O_CREAT, 0600);
    unlink("nameless");
    EQUAL(write(nameless, "content", 7), 7);
    int pipes[2], counter = eventfd(5, 0);
    EQUAL(pipe(pipes), 0);
    EQUAL(write(pipes[1], "through", 7), 7);
    fds[0] = kept, fds[1] = sent, fds[2] = nameless, fds[3] = pipes[0], fds[4] = counter;
    send_fds(stream[0], "plain", fds, 0, NULL);
    send_fds(stream[0], "first", fds, 3, NULL);
    send_fds(stream[0], "second", fds + 3, 2, NULL);
    send_fds(stream[0], "end", fds, 0, NULL);
    close(sent);
    close(nameless);
    close(pipes[0]);
    close(counter);

    // Sockets: an end whose other end is kept, with something in it; the socket itself; one within another.
    int inner[2], carrier[2], secret[2];
    EQUAL(socketpair(AF_UNIX, SOCK_STREAM, 0, inner), 0);
    EQUAL(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, carrier), 0);
    EQUAL(socketpair(AF_UNIX, SOCK_STREAM, 0, secret), 0);
    EQUAL(write(inner[0], "inner", 5) + write(secret[0], "deep", 4), 9);
    send_fds(carrier[0], "carried", secret, 2, NULL);
    fds[0] = inner[1], fds[1] = datagrams[1], fds[2] = carrier[1];
    send_fds(datagrams[0], "sockets", fds, 3, NULL);
    close(inner[1]);
    close(carrier[1]);
    close(secret[0]);
    close(secret[1]);
    for (int i = 0; i < 253; i++) fds[i] = kept;
    send_fds(datagrams[0], "many", fds, 253, NULL);
    send_fds(datagrams[0], "", fds, 1, NULL);

    // A listening TCP socket that nobody else has, and a memory file.
    int tcp = socket(AF_INET, SOCK_STREAM, 0), memory = memfd_create("flying", 0);
    struct sockaddr_in port = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof port;
    EQUAL(bind(tcp, (void *)&port, sizeof port) | listen(tcp, 3) | getsockname(tcp, (void *)&port, &length), 0);
    EQUAL(write(memory, "memory", 6), 6);
    int handed[2];
    EQUAL(socketpair(AF_UNIX, SOCK_STREAM, 0, handed), 0);
    fds[0] = tcp, fds[1] = memory;
    send_fds(handed[0], "x", fds, 2, NULL);
    close(tcp);
    close(memory);
    fds[0] = kept, fds[1] = kept;
    // The sender has gone, and what it has sent is still there.
    close(handed[0]);

    // Credentials: those that are noted because they are wanted, and from one that has ended.
    int wanted[2], on = 1;
    EQUAL(socketpair(AF_UNIX, SOCK_DGRAM, 0, wanted), 0);
    EQUAL(setsockopt(wanted[1], SOL_SOCKET, SO_PASSCRED, &on, sizeof on), 0);
    send_fds(wanted[0], "mine", fds, 0, NULL);
    send_fds(wanted[0], "with", fds, 2, NULL);
    int child = fork();
    if (child == 0) {
        send_fds(wanted[0], "child's", fds, 0, NULL);
        _exit(0);
    }
    EQUAL(waitpid(child, NULL, 0), child);
    int late[2];
    EQUAL(socketpair(AF_UNIX, SOCK_STREAM, 0, late), 0);
    send_fds(late[0], "nobody's", fds, 0, NULL);
    EQUAL(setsockopt(late[1], SOL_SOCKET, SO_PASSCRED, &on, sizeof on), 0);
    send_fds(late[0], "mine", fds, 0, NULL);

    pause_here();

    EQUAL(receive_fds(stream[1], "plain", got, NULL), 0);
    EQUAL(receive_fds(stream[1], "first", got, NULL), 3);
    EQUAL(lseek(got[0], 4, SEEK_SET), 4);
    EQUAL(lseek(kept, 0, SEEK_CUR), 4);
    EQUAL(lseek(got[1], 0, SEEK_CUR), 5);
    EQUAL(fcntl(got[1], F_GETFL) & (O_ACCMODE | O_APPEND), O_RDONLY | O_APPEND);
    EQUAL(pread(got[2], in, sizeof in, 0), 7);
    EXPECT(memcmp(in, "content", 7) == 0);
    EQUAL(receive_fds(stream[1], "second", got, NULL), 2);
    EQUAL(read(got[0], in, sizeof in), 7);
    EQUAL(write(pipes[1], "more", 4), 4);
    EQUAL(read(got[0], in, sizeof in), 4);
    uint64_t count = 0;
    EQUAL(read(got[1], &count, 8), 8);
    EQUAL(count, 5);
    EQUAL(receive_fds(stream[1], "end", got, NULL), 0);
    EXPECT(recv(stream[1], in, 1, MSG_DONTWAIT) == -1 && errno == EAGAIN);

    EQUAL(receive_fds(datagrams[1], "sockets", got, NULL), 3);
    EQUAL(recv(got[0], in, sizeof in, MSG_DONTWAIT), 5);
    EQUAL(write(inner[0], "more", 4), 4);
    EQUAL(recv(got[0], in, sizeof in, MSG_DONTWAIT), 4);
    struct stat a, b;
    EQUAL(fstat(got[1], &a) | fstat(datagrams[1], &b), 0);
    EQUAL(a.st_ino, b.st_ino);
    int carried[3];
    EQUAL(receive_fds(got[2], "carried", carried, NULL), 2);
    EQUAL(recv(carried[1], in, sizeof in, MSG_DONTWAIT), 4);
    EXPECT(memcmp(in, "deep", 4) == 0);
    EQUAL(write(carried[1], "x", 1), 1);
    EQUAL(recv(carried[0], in, sizeof in, MSG_DONTWAIT), 1);
    EQUAL(receive_fds(datagrams[1], "many", got, NULL), 253);
    EQUAL(lseek(got[252], 0, SEEK_CUR), 4);
    EQUAL(receive_fds(datagrams[1], "", got, NULL), 1);

    EQUAL(receive_fds(handed[1], "x", got, NULL), 2);
    int client = socket(AF_INET, SOCK_STREAM, 0);
    EQUAL(connect(client, (void *)&port, sizeof port), 0);
    EXPECT(accept(got[0], NULL, NULL) >= 0);
    EQUAL(pread(got[1], in, sizeof in, 0), 6);
    EQUAL(recv(handed[1], in, sizeof in, 0), 0);

    struct ucred sender = {0};
    EQUAL(receive_fds(wanted[1], "mine", got, &sender), 0);
    EXPECT(sender.pid == getpid() && sender.uid == geteuid() && sender.gid == getegid());
    EQUAL(receive_fds(wanted[1], "with", got, &sender), 2);
    EQUAL(sender.pid, getpid());
    EQUAL(receive_fds(wanted[1], "child's", got, &sender), 0);
    EQUAL(sender.pid, child);
    send_fds(wanted[0], "now", fds, 0, NULL);
    EQUAL(receive_fds(wanted[1], "now", got, &sender), 0);
    EQUAL(sender.pid, getpid());
    EQUAL(receive_fds(late[1], "nobody's", got, &sender), 0);
    EQUAL(sender.pid, 0);
    EQUAL(receive_fds(late[1], "mine", got, &sender), 0);
    EQUAL(sender.pid, getpid());
    return finish();
}
