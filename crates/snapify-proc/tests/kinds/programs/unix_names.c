// UNIX sockets with names: listening ones and their connections, datagrams from many.
#include "check.h"
#include <stddef.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/un.h>

static struct sockaddr_un address(const char *name, socklen_t *length) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t bytes = strlen(name);
    memcpy(address.sun_path, name, bytes);
    *length = offsetof(struct sockaddr_un, sun_path) + bytes + (name[0] != '@');
    // An abstract name that other tests have not, nor another generation of this one.
    if (name[0] == '@') {
        *length += snprintf(address.sun_path + bytes, 60, "-%d-%s", getppid(), getenv("PWD") ?: "");
        address.sun_path[0] = 0;
    }
    return address;
}

static int bound(int type, const char *name) {
    int fd = socket(AF_UNIX, type, 0);
    socklen_t length;
    struct sockaddr_un own = address(name, &length);
    EQUAL(bind(fd, (void *)&own, length), 0);
    return fd;
}

static void join(int fd, const struct sockaddr_un *to, socklen_t length) { EQUAL(connect(fd, (void *)to, length), 0); }

static int listening(int type, const char *name, int backlog) {
    int fd = bound(type, name);
    EQUAL(listen(fd, backlog), 0);
    return fd;
}

// Addresses as they were, for later: the name of the program's folder is in some.
static struct sockaddr_un names[32];
static socklen_t lengths[32];
static int used;

static int remember(int fd) {
    lengths[used] = sizeof names[used];
    EQUAL(getsockname(fd, (void *)&names[used], &lengths[used]), 0);
    return used++;
}

static void expect_name(int fd, int (*get)(int, struct sockaddr *, socklen_t *), int number) {
    struct sockaddr_un now = {0};
    socklen_t length = sizeof now;
    EQUAL(get(fd, (void *)&now, &length), 0);
    EQUAL(length, lengths[number]);
    EXPECT(memcmp(&now, &names[number], length) == 0);
}

static int own_name(int fd, struct sockaddr *a, socklen_t *l) { return getsockname(fd, a, l); }
static int peer_name(int fd, struct sockaddr *a, socklen_t *l) { return getpeername(fd, a, l); }

static int client_of(int type, int number) {
    int fd = socket(AF_UNIX, type, 0);
    join(fd, &names[number], lengths[number]);
    return fd;
}

static void expect_from(int fd, const char *text, int number) {
    struct sockaddr_un from = {0};
    socklen_t length = sizeof from;
    char in[100] = "";
    EQUAL(recvfrom(fd, in, sizeof in, MSG_DONTWAIT, (void *)&from, &length), strlen(text));
    EXPECT(strcmp(in, text) == 0);
    if (number < 0) {
        EQUAL(length, 0);
    } else {
        EQUAL(length, lengths[number]);
        EXPECT(memcmp(&from, &names[number], length) == 0);
    }
}

int main(void) {
    static const char *kinds[] = {"server.sock", "@server", "@packets"};
    char in[100];
    signal(SIGPIPE, SIG_IGN);
    for (int i = 0; i < 3; i++) unlink(kinds[i]);
    int server[3], accepted[3], client[3], waiting[3][2], name[3];
    for (int i = 0; i < 3; i++) {
        int type = i == 2 ? SOCK_SEQPACKET : SOCK_STREAM;
        server[i] = listening(type, kinds[i], 5);
        name[i] = remember(server[i]);
        client[i] = client_of(type, name[i]);
        accepted[i] = accept(server[i], NULL, NULL);
        EQUAL(write(client[i], "to server", 9) + write(accepted[i], "to client", 9), 18);
        waiting[i][0] = client_of(type, name[i]);
        waiting[i][1] = client_of(type, name[i]);
    }
    EQUAL(chmod("server.sock", 0640), 0);
    shutdown(waiting[0][1], SHUT_WR);

    // An absolute path, a client with a name too, and one whose server has closed.
    char *here = getcwd(NULL, 0), path[108], other[108];
    snprintf(path, sizeof path, "%s/absolute", here);
    snprintf(other, sizeof other, "%s/client", here);
    unlink(path);
    unlink(other);
    int absolute = listening(SOCK_STREAM, path, 0), absolute_name = remember(absolute);
    int named_client = bound(SOCK_STREAM, other), client_name = remember(named_client);
    join(named_client, &names[absolute_name], lengths[absolute_name]);
    int from_client = accept(absolute, NULL, NULL);
    int orphan = client_of(SOCK_STREAM, absolute_name);
    int closing = accept(absolute, NULL, NULL);
    EQUAL(write(closing, "farewell", 8), 8);
    close(closing);
    int leaver = client_of(SOCK_STREAM, absolute_name);
    int lone_server = accept(absolute, NULL, NULL);
    EQUAL(write(leaver, "and out", 7), 7);
    close(leaver);

    // Removed while it is in use.
    unlink("removed");
    int removed = listening(SOCK_STREAM, "removed", 3), removed_name = remember(removed);
    int removed_client = client_of(SOCK_STREAM, removed_name);
    unlink("removed");

    // Closed, while its connection goes on.
    int gone = listening(SOCK_STREAM, "@gone", 3), gone_name = remember(gone);
    int gone_client = client_of(SOCK_STREAM, gone_name), gone_accepted = accept(gone, NULL, NULL);
    close(gone);

    // Not listening.
    int idle = bound(SOCK_STREAM, "@idle"), idle_name = remember(idle);
    unlink("file.sock");
    int file = bound(SOCK_DGRAM, "file.sock");

    // Datagrams from many senders, some of whom are gone, and in the order of sending.
    unlink("mail");
    unlink("sender");
    int mail = bound(SOCK_DGRAM, "mail"), mail_name = remember(mail);
    int sender = bound(SOCK_DGRAM, "sender"), sender_name = remember(sender);
    int abstract = bound(SOCK_DGRAM, "@sender"), abstract_name = remember(abstract);
    int nameless = client_of(SOCK_DGRAM, mail_name);
    int dead = bound(SOCK_DGRAM, "@dead"), dead_name = remember(dead);
    int automatic = socket(AF_UNIX, SOCK_DGRAM, 0);
    struct sockaddr_un any = {.sun_family = AF_UNIX};
    EQUAL(bind(automatic, (void *)&any, sizeof any.sun_family), 0);
    int automatic_name = remember(automatic);
    EQUAL(sendto(sender, "first", 5, 0, (void *)&names[mail_name], lengths[mail_name]), 5);
    EQUAL(sendto(abstract, "", 0, 0, (void *)&names[mail_name], lengths[mail_name]), 0);
    EQUAL(send(nameless, "third", 5, 0), 5);
    EQUAL(sendto(dead, "fourth", 6, 0, (void *)&names[mail_name], lengths[mail_name]), 6);
    EQUAL(sendto(automatic, "fifth", 5, 0, (void *)&names[mail_name], lengths[mail_name]), 5);
    close(dead);

    // Connected both ways by name; one way; with itself; with one that is gone.
    unlink("left");
    unlink("right");
    int one = bound(SOCK_DGRAM, "left"), one_name = remember(one);
    int two = bound(SOCK_DGRAM, "right"), two_name = remember(two);
    EQUAL(sendto(abstract, "before", 6, 0, (void *)&names[two_name], lengths[two_name]), 6);
    join(one, &names[two_name], lengths[two_name]);
    join(two, &names[one_name], lengths[one_name]);
    for (int i = 0; i < 20; i++) EQUAL(send(one, "again", 5, 0), 5);
    int self = bound(SOCK_DGRAM, "@self"), self_name = remember(self);
    join(self, &names[self_name], lengths[self_name]);
    EQUAL(send(self, "echo", 4, 0), 4);
    int lost = bound(SOCK_DGRAM, "@lost"), lost_name = remember(lost);
    int faithful = client_of(SOCK_DGRAM, lost_name);
    close(lost);

    // One after the other had the same name, and has lost its file; the last has it.
    int same[3], same_client[3], same_name = 0;
    for (int i = 0; i < 3; i++) {
        unlink("same");
        same[i] = bound(SOCK_DGRAM, "same");
        same_name = remember(same[i]);
        same_client[i] = client_of(SOCK_DGRAM, same_name);
        EQUAL(send(same_client[i], &"abc"[i], 1, 0), 1);
    }

    // A pair of which one end has turned to another.
    int torn[2];
    EQUAL(socketpair(AF_UNIX, SOCK_DGRAM, 0, torn), 0);
    join(torn[0], &names[mail_name], lengths[mail_name]);
    socklen_t size;

    pause_here();

    for (int i = 0; i < 3; i++) {
        EQUAL(send(same_client[i], &"def"[i], 1, 0), 1);
        expect_name(same[i], own_name, same_name);
        for (int n = 0; n < 2; n++) {
            EQUAL(recv(same[i], in, sizeof in, MSG_DONTWAIT), 1);
            EQUAL(in[0], "abcdef"[i + n * 3]);
        }
    }
    for (int i = 0; i < 3; i++) {
        int type = i == 2 ? SOCK_SEQPACKET : SOCK_STREAM;
        EQUAL(recv(accepted[i], in, sizeof in, 0), 9);
        EXPECT(memcmp(in, "to server", 9) == 0);
        EQUAL(recv(client[i], in, sizeof in, 0), 9);
        EXPECT(memcmp(in, "to client", 9) == 0);
        expect_name(server[i], own_name, name[i]);
        expect_name(accepted[i], own_name, name[i]);
        expect_name(client[i], peer_name, name[i]);
        struct ucred peer = {0};
        size = sizeof peer;
        EQUAL(getsockopt(accepted[i], SOL_SOCKET, SO_PEERCRED, &peer, &size), 0);
        EQUAL(peer.pid, getpid());
        EXPECT(write(waiting[i][0], "early", 5) == 5);
        int first = accept(server[i], NULL, NULL), second = accept(server[i], NULL, NULL);
        EQUAL(recv(first, in, sizeof in, MSG_DONTWAIT), 5);
        EQUAL(getsockopt(first, SOL_SOCKET, SO_PEERCRED, &peer, &size), 0);
        EQUAL(peer.pid, getpid());
        EQUAL(write(second, "late", 4), 4);
        EQUAL(recv(waiting[i][1], in, sizeof in, MSG_DONTWAIT), 4);
        if (i == 0) EQUAL(recv(second, in, sizeof in, MSG_DONTWAIT), 0);
        fcntl(server[i], F_SETFL, O_NONBLOCK);
        EXPECT(accept(server[i], NULL, NULL) == -1 && errno == EAGAIN);
        int late = client_of(type, name[i]);
        EQUAL(write(late, "new", 3), 3);
        int new = accept(server[i], NULL, NULL);
        EQUAL(recv(new, in, sizeof in, MSG_DONTWAIT), 3);
    }
    struct stat stat_;
    EQUAL(stat("server.sock", &stat_), 0);
    EQUAL(stat_.st_mode, S_IFSOCK | 0640);

    expect_name(from_client, own_name, absolute_name);
    expect_name(from_client, peer_name, client_name);
    expect_name(named_client, own_name, client_name);
    EQUAL(write(named_client, "hello", 5), 5);
    EQUAL(recv(from_client, in, sizeof in, MSG_DONTWAIT), 5);
    EQUAL(recv(orphan, in, sizeof in, MSG_DONTWAIT), 8);
    EQUAL(recv(orphan, in, sizeof in, MSG_DONTWAIT), 0);
    EQUAL(recv(lone_server, in, sizeof in, MSG_DONTWAIT), 7);
    EQUAL(recv(lone_server, in, sizeof in, MSG_DONTWAIT), 0);
    expect_name(lone_server, own_name, absolute_name);

    EXPECT(access("removed", F_OK) == -1);
    int from_removed = accept(removed, NULL, NULL);
    EQUAL(write(from_removed, "found", 5), 5);
    EQUAL(recv(removed_client, in, sizeof in, MSG_DONTWAIT), 5);
    expect_name(removed, own_name, removed_name);

    EQUAL(write(gone_client, "x", 1), 1);
    EQUAL(recv(gone_accepted, in, sizeof in, MSG_DONTWAIT), 1);
    expect_name(gone_accepted, own_name, gone_name);
    expect_name(idle, own_name, idle_name);
    EQUAL(listen(idle, 1), 0);
    client_of(SOCK_STREAM, idle_name);
    EXPECT(access("file.sock", F_OK) == 0);
    close(file);

    expect_from(mail, "first", sender_name);
    expect_from(mail, "", abstract_name);
    expect_from(mail, "third", -1);
    expect_from(mail, "fourth", dead_name);
    expect_from(mail, "fifth", automatic_name);
    EXPECT(recv(mail, in, 1, MSG_DONTWAIT) == -1 && errno == EAGAIN);
    EQUAL(send(nameless, "again", 5, 0), 5);
    expect_from(mail, "again", -1);
    expect_name(automatic, own_name, automatic_name);

    expect_from(two, "before", abstract_name);
    for (int i = 0; i < 20; i++) expect_from(two, "again", one_name);
    EQUAL(send(two, "back", 4, 0), 4);
    expect_from(one, "back", two_name);
    EXPECT(sendto(abstract, "x", 1, 0, (void *)&names[two_name], lengths[two_name]) == -1 && errno == EPERM);
    expect_from(self, "echo", self_name);
    expect_name(faithful, peer_name, lost_name);
    EXPECT(send(faithful, "x", 1, 0) == -1 && errno == ECONNREFUSED);

    EQUAL(send(torn[0], "turned", 6, 0), 6);
    expect_from(mail, "turned", -1);
    EXPECT(send(torn[1], "x", 1, 0) == -1 && errno == EPERM);
    return finish();
}
