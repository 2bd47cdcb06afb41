// Pairs of UNIX sockets: what is in them, and in which ways an end can be gone.
#include "check.h"
#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/un.h>

static void pair(int type, int fds[2]) { EQUAL(socketpair(AF_UNIX, type, 0, fds), 0); }

static int option(int fd, int name) {
    int value = -1;
    socklen_t length = sizeof value;
    EQUAL(getsockopt(fd, SOL_SOCKET, name, &value, &length), 0);
    return value;
}

static void set(int fd, int name, int value) { EQUAL(setsockopt(fd, SOL_SOCKET, name, &value, sizeof value), 0); }

static void expect_read(int fd, const char *text) {
    char in[64] = "";
    EQUAL(recv(fd, in, sizeof in, MSG_DONTWAIT), strlen(text));
    EXPECT(memcmp(in, text, strlen(text)) == 0);
}

static void expect_error(int fd, int error) {
    char in[64];
    EQUAL(recv(fd, in, sizeof in, MSG_DONTWAIT), -1);
    EQUAL(errno, error);
}

static void expect_end(int fd) {
    char in[64];
    EQUAL(recv(fd, in, sizeof in, MSG_DONTWAIT), 0);
}

// A buffer filled by writes of one length is as full afterwards.
static long fill(int fd, int length) {
    static char block[10000];
    long sent = 0;
    for (ssize_t n; (n = send(fd, block, length, MSG_DONTWAIT)) > 0;) sent += n;
    EQUAL(errno, EAGAIN);
    return sent;
}

int main(void) {
    static char out[150000], in[200000];
    for (size_t i = 0; i < sizeof out; i++) out[i] = i * 7 % 251;
    signal(SIGPIPE, SIG_IGN);

    int both[2], again, nonblocking[2], packets[2], datagrams[2];
    pair(SOCK_STREAM, both);
    EQUAL(write(both[0], "to one", 6), 6);
    EQUAL(write(both[1], out, sizeof out), sizeof out);
    again = dup(both[0]);
    EQUAL(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, nonblocking), 0);

    pair(SOCK_SEQPACKET, packets);
    EQUAL(send(packets[0], "one", 3, 0) + send(packets[0], "", 0, 0) + send(packets[0], "three", 5, 0), 8);
    EQUAL(send(packets[1], out, 100000, 0), 100000);
    pair(SOCK_DGRAM, datagrams);
    EQUAL(send(datagrams[0], "", 0, 0) + send(datagrams[0], "two", 3, 0) + send(datagrams[0], "", 0, 0), 3);
    for (int i = 0; i < 40; i++) EQUAL(send(datagrams[1], out, i, 0), i);

    // Shut down in all ways, with something parted to read.
    int sent[2], deaf[2], done[2];
    pair(SOCK_STREAM, sent);
    EQUAL(write(sent[0], "last", 4), 4);
    shutdown(sent[0], SHUT_WR);
    pair(SOCK_SEQPACKET, deaf);
    EQUAL(write(deaf[1], "unheard", 7), 7);
    shutdown(deaf[0], SHUT_RD);
    pair(SOCK_STREAM, done);
    EQUAL(write(done[1], "x", 1), 1);
    shutdown(done[0], SHUT_RDWR);

    // Closed by the other side, with and without something that it has not read.
    int parted[2], reset[2], packet_left[2], packet_reset[2], datagram_left[2];
    pair(SOCK_STREAM, parted);
    EQUAL(write(parted[1], "goodbye", 7), 7);
    close(parted[1]);
    pair(SOCK_STREAM, reset);
    EQUAL(write(reset[0], "ignored", 7) + write(reset[1], "and gone", 8), 15);
    close(reset[1]);
    pair(SOCK_SEQPACKET, packet_left);
    EQUAL(write(packet_left[1], "bye", 3), 3);
    EQUAL(send(packet_left[1], "", 0, 0), 0);
    close(packet_left[1]);
    pair(SOCK_SEQPACKET, packet_reset);
    EQUAL(write(packet_reset[0], "ignored", 7), 7);
    close(packet_reset[1]);
    pair(SOCK_DGRAM, datagram_left);
    EQUAL(write(datagram_left[1], "bye", 3), 3);
    close(datagram_left[1]);

    // Full.
    int small[2], pages[2];
    pair(SOCK_STREAM, small);
    pair(SOCK_STREAM, pages);
    set(pages[0], SO_SNDBUF, 50000);
    long in_small = fill(small[0], 1), in_pages = fill(pages[0], 4096);

    // Options.
    int options[2];
    pair(SOCK_STREAM, options);
    set(options[0], SO_SNDBUF, 8000);
    set(options[0], SO_RCVBUF, 9000);
    set(options[0], SO_KEEPALIVE, 1);
    set(options[0], SO_PASSCRED, 1);
    set(options[0], SO_RCVLOWAT, 3);
    set(options[0], SO_PRIORITY, 4);
    struct timeval time = {7, 500000}, now = {0};
    struct linger linger = {1, 5}, lingers = {0};
    EQUAL(setsockopt(options[0], SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time), 0);
    EQUAL(setsockopt(options[0], SOL_SOCKET, SO_LINGER, &linger, sizeof linger), 0);
    int send_buffer = option(options[0], SO_SNDBUF), usual = option(options[1], SO_SNDBUF);
    int lock = option(options[0], 72);

    int peeked[2];
    pair(SOCK_STREAM, peeked);
    EQUAL(write(peeked[1], "abcdef", 6), 6);
    set(peeked[0], SO_PEEK_OFF, 2);
    EQUAL(recv(peeked[0], in, 1, MSG_PEEK), 1);

    int urgent[2];
    pair(SOCK_STREAM, urgent);
    EQUAL(write(urgent[0], "before", 6) + send(urgent[0], "!", 1, MSG_OOB) + write(urgent[0], "behind", 6), 13);

    // Alone, and shut down alone.
    int alone = socket(AF_UNIX, SOCK_STREAM, 0), mute = socket(AF_UNIX, SOCK_DGRAM, 0);
    shutdown(mute, SHUT_WR);

    int epoll = epoll_create1(0);
    struct epoll_event event = {EPOLLIN, {.fd = parted[0]}};
    EQUAL(epoll_ctl(epoll, EPOLL_CTL_ADD, parted[0], &event), 0);

    pause_here();

    expect_read(both[1], "to one");
    size_t have = 0;
    for (ssize_t n; (n = recv(have % 2 ? both[0] : again, in + have, 7777, MSG_DONTWAIT)) > 0;) have += n;
    EQUAL(errno, EAGAIN);
    EQUAL(have, sizeof out);
    EXPECT(memcmp(in, out, have) == 0);
    EQUAL(write(again, "more", 4), 4);
    expect_read(both[1], "more");
    EQUAL(fcntl(nonblocking[0], F_GETFL), O_RDWR | O_NONBLOCK);
    EQUAL(fcntl(nonblocking[1], F_GETFD), FD_CLOEXEC);
    EQUAL(fcntl(both[0], F_GETFL), O_RDWR);
    struct ucred peer = {0};
    socklen_t length = sizeof peer;
    EQUAL(getsockopt(both[0], SOL_SOCKET, SO_PEERCRED, &peer, &length), 0);
    EQUAL(peer.pid, getpid());
    EQUAL(peer.uid, geteuid());

    expect_read(packets[1], "one");
    expect_read(packets[1], "");
    expect_read(packets[1], "three");
    expect_error(packets[1], EAGAIN);
    EQUAL(recv(packets[0], in, sizeof in, 0), 100000);
    EXPECT(memcmp(in, out, 100000) == 0);
    expect_read(datagrams[1], "");
    expect_read(datagrams[1], "two");
    expect_read(datagrams[1], "");
    expect_error(datagrams[1], EAGAIN);
    for (int i = 0; i < 40; i++) EQUAL(recv(datagrams[0], in, sizeof in, MSG_DONTWAIT), i);
    EQUAL(send(datagrams[0], "still", 5, 0), 5);
    expect_read(datagrams[1], "still");

    expect_read(sent[1], "last");
    expect_end(sent[1]);
    EQUAL(write(sent[1], "back", 4), 4);
    expect_read(sent[0], "back");
    EXPECT(write(sent[0], "x", 1) == -1 && errno == EPIPE);
    expect_read(deaf[0], "unheard");
    expect_end(deaf[0]);
    EXPECT(write(deaf[1], "x", 1) == -1 && errno == EPIPE);
    EQUAL(write(deaf[0], "x", 1), 1);
    expect_read(done[0], "x");
    expect_end(done[0]);
    expect_end(done[1]);

    struct epoll_event events[2];
    EQUAL(epoll_wait(epoll, events, 2, 0), 1);
    EQUAL(events[0].data.fd, parted[0]);
    expect_read(parted[0], "goodbye");
    expect_end(parted[0]);
    EXPECT(write(parted[0], "x", 1) == -1 && errno == EPIPE);
    expect_read(reset[0], "and gone");
    EXPECT(read(reset[0], in, 1) == -1 && errno == ECONNRESET);
    expect_end(reset[0]);
    expect_read(packet_left[0], "bye");
    expect_end(packet_left[0]);
    expect_end(packet_left[0]);
    expect_error(packet_reset[0], ECONNRESET);
    expect_end(packet_reset[0]);
    expect_read(datagram_left[0], "bye");
    EXPECT(write(datagram_left[0], "x", 1) == -1 && errno == ECONNREFUSED);
    EXPECT(write(datagram_left[0], "x", 1) == -1 && errno == ENOTCONN);

    EXPECT(send(small[0], "x", 1, MSG_DONTWAIT) == -1 && errno == EAGAIN);
    EXPECT(send(pages[0], "x", 1, MSG_DONTWAIT) == -1 && errno == EAGAIN);
    for (ssize_t n; (n = recv(small[1], in, sizeof in, MSG_DONTWAIT)) > 0;) in_small -= n;
    for (ssize_t n; (n = recv(pages[1], in, sizeof in, MSG_DONTWAIT)) > 0;) in_pages -= n;
    EQUAL(in_small, 0);
    EQUAL(in_pages, 0);
    EQUAL(send(small[0], "x", 1, MSG_DONTWAIT), 1);
    EQUAL(option(small[0], SO_SNDBUF), usual);
    EQUAL(option(small[0], 72), 0);

    EQUAL(option(options[0], SO_SNDBUF), send_buffer);
    EQUAL(option(options[1], SO_SNDBUF), usual);
    EQUAL(option(options[0], SO_RCVBUF), 18000);
    EQUAL(option(options[0], 72), lock);
    EQUAL(option(options[0], SO_KEEPALIVE), 1);
    EQUAL(option(options[0], SO_PASSCRED), 1);
    EQUAL(option(options[1], SO_PASSCRED), 0);
    EQUAL(option(options[0], SO_RCVLOWAT), 3);
    EQUAL(option(options[0], SO_PRIORITY), 4);
    length = sizeof now;
    EQUAL(getsockopt(options[0], SOL_SOCKET, SO_RCVTIMEO, &now, &length), 0);
    EQUAL(now.tv_sec * 1000000 + now.tv_usec, 7500000);
    length = sizeof lingers;
    EQUAL(getsockopt(options[0], SOL_SOCKET, SO_LINGER, &lingers, &length), 0);
    EXPECT(lingers.l_onoff == 1 && lingers.l_linger == 5);

    EQUAL(option(peeked[0], SO_PEEK_OFF), 3);
    EQUAL(recv(peeked[0], in, 9, MSG_PEEK), 3);
    EXPECT(memcmp(in, "def", 3) == 0);

    EQUAL(recv(urgent[1], in, 20, 0), 6);
    EQUAL(ioctl(urgent[1], SIOCATMARK, &length), 0);
    EQUAL(length, 1);
    EXPECT(recv(urgent[1], in, 1, MSG_OOB) == 1 && in[0] == '!');
    expect_read(urgent[1], "behind");

    EXPECT(write(alone, "x", 1) == -1 && errno == ENOTCONN);
    EXPECT(send(mute, "x", 1, 0) == -1 && errno == EPIPE);
    return finish();
}
