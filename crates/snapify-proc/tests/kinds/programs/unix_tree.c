// UNIX sockets between a server, which forks workers, and its clients.
#include "check.h"
#include <sys/socket.h>
#include <sys/un.h>

static struct sockaddr_un server_name = {AF_UNIX, "tree.sock"};

static int peer_pid(int fd) {
    struct ucred peer = {0};
    socklen_t length = sizeof peer;
    EQUAL(getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length), 0);
    return peer.pid;
}

static void report(int to) {
    EQUAL(write(to, failures ? "bad" : "ok!", 3), 3);
    _exit(failures);
}

// Waits for the sign that all is over.
static void await(int sign) {
    char byte;
    EQUAL(read(sign, &byte, 1), 1);
}

static void worker(int listener, int sign, int to_parent, int from_sibling) {
    char in[64];
    await(sign);
    int client = accept(listener, NULL, NULL);
    EQUAL(write(client, "served", 6), 6);
    EQUAL(recv(client, in, sizeof in, 0), 4);
    EQUAL(recv(from_sibling, in, sizeof in, 0), 7);
    report(to_parent);
}

static void client(int waiting, int connected, int sign, int to_parent, int to_sibling) {
    char in[64];
    await(sign);
    EQUAL(write(to_sibling, "sibling", 7), 7);
    EQUAL(recv(waiting, in, sizeof in, 0), 6);
    EQUAL(write(waiting, "done", 4), 4);
    EQUAL(recv(connected, in, sizeof in, 0), 6);
    EXPECT(memcmp(in, "queued", 6) == 0);
    report(to_parent);
}

int main(void) {
    unlink("tree.sock");
    int listener = socket(AF_UNIX, SOCK_STREAM, 0);
    EQUAL(bind(listener, (void *)&server_name, sizeof server_name), 0);
    EQUAL(listen(listener, 8), 0);
    int sign[2], reports[2], siblings[2], letters[2], on = 1;
    EQUAL(pipe(sign) | socketpair(AF_UNIX, SOCK_SEQPACKET, 0, reports), 0);
    EQUAL(socketpair(AF_UNIX, SOCK_STREAM, 0, siblings) | socketpair(AF_UNIX, SOCK_DGRAM, 0, letters), 0);
    EQUAL(setsockopt(letters[0], SOL_SOCKET, SO_PASSCRED, &on, sizeof on), 0);
    fflush(stdout);
    int clients = fork();
    if (clients == 0) {
        int connected = socket(AF_UNIX, SOCK_STREAM, 0), waiting = socket(AF_UNIX, SOCK_STREAM, 0);
        EQUAL(connect(connected, (void *)&server_name, sizeof server_name), 0);
        EQUAL(connect(waiting, (void *)&server_name, sizeof server_name), 0);
        EQUAL(write(letters[1], "from a child", 12), 12);
        close(siblings[0]);
        close(letters[0]);
        EQUAL(send(reports[1], "ready", 5, 0), 5);
        client(waiting, connected, sign[0], reports[1], siblings[1]);
    }
    char in[64];
    EQUAL(recv(reports[0], in, sizeof in, 0), 5);
    int accepted = accept(listener, NULL, NULL);
    EQUAL(peer_pid(accepted), clients);
    EQUAL(write(accepted, "queued", 6), 6);
    fflush(stdout);
    int workers = fork();
    if (workers == 0) {
        close(siblings[1]);
        worker(listener, sign[0], reports[1], siblings[0]);
    }
    // A parent's end that both children have the other end of.
    close(siblings[0]);
    close(siblings[1]);

    pause_here();

    EQUAL(peer_pid(accepted), clients);
    EQUAL(peer_pid(reports[0]), getpid());
    struct ucred *sender;
    union { char bytes[200]; struct cmsghdr aligned; } control = {0};
    struct iovec vector = {in, sizeof in};
    struct msghdr header = {.msg_iov = &vector, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    EQUAL(recvmsg(letters[0], &header, MSG_DONTWAIT), 12);
    sender = (void *)CMSG_DATA(&control.aligned);
    EQUAL(sender->pid, clients);
    EQUAL(write(sign[1], "go", 2), 2);
    for (int i = 0; i < 2; i++) {
        EQUAL(recv(reports[0], in, sizeof in, 0), 3);
        EXPECT(memcmp(in, "ok!", 3) == 0);
    }
    int status;
    EQUAL(waitpid(clients, &status, 0), clients);
    EQUAL(status, 0);
    EQUAL(waitpid(workers, &status, 0), workers);
    EQUAL(status, 0);
    return finish();
}
