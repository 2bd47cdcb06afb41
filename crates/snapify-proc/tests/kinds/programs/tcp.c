#include "inet.h"

enum { MOST = 64 << 20 };

static struct pair {
    int client, server;
    union address client_at, server_at;
} pairs[32];
static int count;

static struct pair *pair(const char *host, const char *from) {
    struct pair *made = &pairs[count++];
    int listener = listening(host, 1);
    union address own = own_address(listener);
    union address to = address(from, port_of(&own));
    if (to.any.sa_family == AF_INET && own.any.sa_family == AF_INET) to = own;
    made->client = bound(SOCK_STREAM, from, 0);
    EQUAL(connect(made->client, &to.any, length_of(&to)), 0);
    made->server = accept(listener, NULL, NULL);
    EXPECT(made->server >= 0);
    close(listener);
    made->client_at = own_address(made->client);
    made->server_at = own_address(made->server);
    return made;
}

// The ends of a connection between two families write their addresses each in its own way.
static void same(union address a, union address b) {
    EQUAL(port_of(&a), port_of(&b));
    if (a.any.sa_family == b.any.sa_family) EQUAL(memcmp(&a, &b, sizeof a), 0);
}

static char pattern(size_t at) { return at * 31 % 253; }

// Fills both queues.
static size_t stuff(int socket) {
    char block[5000];
    size_t sent = 0;
    for (;;) {
        for (size_t i = 0; i < sizeof block; i++) block[i] = pattern(sent + i);
        ssize_t n = send(socket, block, sizeof block, MSG_DONTWAIT);
        if (n < 0) {
            EQUAL(errno, EAGAIN);
            return sent;
        }
        sent += n;
    }
}

static void read_pattern(int socket, size_t expected) {
    static char in[100000];
    size_t have = 0;
    while (have < expected) {
        ssize_t n = recv(socket, in, sizeof in, 0);
        if (n <= 0) break;
        for (ssize_t i = 0; i < n; i++)
            if (in[i] != pattern(have + i)) {
                EQUAL(i, -1);
                return;
            }
        have += n;
    }
    EQUAL(have, expected);
}


static void exchange(struct pair *p) {
    char in[8];
    same(own_address(p->client), p->client_at);
    same(own_address(p->server), p->server_at);
    same(peer_address(p->client), p->server_at);
    same(peer_address(p->server), p->client_at);
    EQUAL(send(p->client, "ping", 4, 0), 4);
    EQUAL(recv(p->server, in, sizeof in, 0), 4);
    EQUAL(send(p->server, "pong!", 5, 0), 5);
    EQUAL(recv(p->client, in, sizeof in, 0), 5);
}

int main(void) {
    signal(SIGPIPE, SIG_IGN);
    static char in[MOST];

    struct pair *idle = pair("127.0.0.1", "127.0.0.1");
    fcntl(idle->client, F_SETFL, O_NONBLOCK);
    struct pair *v6 = pair("::1", "::1");
    struct pair *mapped = pair("::", "127.0.0.1");
    struct pair *elsewhere = pair("127.0.0.9", "127.0.0.8");

    // Something on its way in both directions.
    struct pair *queued = pair("127.0.0.1", "127.0.0.1");
    EQUAL(send(queued->client, "to the server", 13, 0), 13);
    EQUAL(send(queued->server, "to the client", 13, 0), 13);
    // Half a message was read.
    EQUAL(recv(queued->server, in, 3, 0), 3);

    // As much as fits, in the receiver's buffer and in the sender's; with the usual and with small buffers.
    struct pair *full = pair("127.0.0.1", "127.0.0.1");
    size_t to_server = stuff(full->client), to_client = stuff(full->server);
    struct pair *small = pair("::1", "::1");
    set(small->server, SOL_SOCKET, SO_RCVBUF, 8000);
    set(small->client, SOL_SOCKET, SO_SNDBUF, 20000);
    size_t small_sent = stuff(small->client);
    EQUAL(shutdown(small->client, SHUT_WR), 0);

    struct pair *half = pair("127.0.0.1", "127.0.0.1");
    EQUAL(send(half->client, "last", 4, 0), 4);
    EQUAL(shutdown(half->client, SHUT_WR), 0);
    EQUAL(send(half->server, "answer", 6, 0), 6);

    struct pair *closed = pair("127.0.0.1", "127.0.0.1");
    EQUAL(send(closed->server, "goodbye", 7, 0), 7);
    close(closed->server);

    // What the kernel sends for a socket that nobody has any more.
    struct pair *gone = pair("127.0.0.1", "127.0.0.1");
    set(gone->server, SOL_SOCKET, SO_RCVBUF, 8000);
    set(gone->client, SOL_SOCKET, SO_SNDBUF, 200000);
    size_t gone_sent = stuff(gone->client);
    close(gone->client);

    struct pair *over = pair("127.0.0.1", "127.0.0.1");
    EQUAL(send(over->client, "all", 3, 0), 3);
    EQUAL(shutdown(over->client, SHUT_WR), 0);
    EQUAL(shutdown(over->server, SHUT_WR), 0);

    struct pair *reset = pair("127.0.0.1", "127.0.0.1");
    struct linger at_once = {1, 0};
    EQUAL(send(reset->server, "before", 6, 0), 6);
    EQUAL(setsockopt(reset->server, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once), 0);
    close(reset->server);

    struct pair *deaf = pair("127.0.0.1", "127.0.0.1");
    EQUAL(shutdown(deaf->client, SHUT_RD), 0);

    struct pair *corked = pair("127.0.0.1", "127.0.0.1");
    set(corked->client, IPPROTO_TCP, TCP_CORK, 1);
    EQUAL(send(corked->client, "corked", 6, 0), 6);

    struct pair *urgent = pair("127.0.0.1", "127.0.0.1");
    EQUAL(send(urgent->client, "before", 6, 0), 6);
    EQUAL(send(urgent->client, "!", 1, MSG_OOB), 1);
    EQUAL(send(urgent->client, "after", 5, 0), 5);
    struct pair *in_line = pair("127.0.0.1", "127.0.0.1");
    set(in_line->server, SOL_SOCKET, SO_OOBINLINE, 1);
    EQUAL(send(in_line->client, "abc", 3, MSG_OOB), 3);
    EQUAL(send(in_line->client, "d", 1, 0), 1);

    struct pair *options = pair("127.0.0.1", "127.0.0.1");
    int o = options->client;
    set(o, IPPROTO_TCP, TCP_NODELAY, 1);
    set(o, SOL_SOCKET, SO_KEEPALIVE, 1);
    set(o, IPPROTO_TCP, TCP_KEEPIDLE, 111);
    set(o, IPPROTO_TCP, TCP_KEEPINTVL, 22);
    set(o, IPPROTO_TCP, TCP_KEEPCNT, 3);
    set(o, IPPROTO_TCP, TCP_USER_TIMEOUT, 44444);
    set(o, IPPROTO_IP, IP_TOS, 0x10);
    set(o, IPPROTO_IP, IP_TTL, 33);
    set(o, SOL_SOCKET, SO_PRIORITY, 3);
    set(o, SOL_SOCKET, SO_OOBINLINE, 1);
    set(o, SOL_SOCKET, SO_RCVLOWAT, 5);
    struct linger linger = {1, 7};
    EQUAL(setsockopt(o, SOL_SOCKET, SO_LINGER, &linger, sizeof linger), 0);
    struct timeval timeout = {3, 500000};
    EQUAL(setsockopt(o, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout), 0);
    timeout.tv_sec = 9;
    EQUAL(setsockopt(o, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof timeout), 0);
    set(o, SOL_SOCKET, SO_SNDBUF, 50000);
    set(o, SOL_SOCKET, SO_RCVBUF, 60000);
    int send_buffer = option(o, SOL_SOCKET, SO_SNDBUF), receive_buffer = option(o, SOL_SOCKET, SO_RCVBUF);

    // The same descriptor twice, and one that is watched.
    int twin = fcntl(idle->server, F_DUPFD_CLOEXEC, 100);
    int epoll = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = 77};
    EQUAL(epoll_ctl(epoll, EPOLL_CTL_ADD, queued->client, &event), 0);

    pause_here();

    EQUAL(fcntl(idle->client, F_GETFL), O_RDWR | O_NONBLOCK);
    EQUAL(fcntl(idle->server, F_GETFL), O_RDWR);
    EQUAL(recv(idle->client, in, 1, 0), -1);
    EQUAL(errno, EAGAIN);
    fcntl(idle->client, F_SETFL, 0);
    exchange(idle);
    exchange(v6);
    exchange(mapped);
    exchange(elsewhere);
    EQUAL(send(idle->client, "dup", 3, 0), 3);
    EQUAL(recv(twin, in, 10, 0), 3);

    EQUAL(epoll_wait(epoll, &event, 1, 0), 1);
    EQUAL(event.data.u64, 77);
    EQUAL(drain(queued->server, in, MOST), 10);
    EXPECT(memcmp(in, "the server", 10) == 0);
    EQUAL(drain(queued->client, in, MOST), 13);
    EXPECT(memcmp(in, "to the client", 13) == 0);
    EQUAL(epoll_wait(epoll, &event, 1, 0), 0);
    exchange(queued);

    read_pattern(full->server, to_server);
    read_pattern(full->client, to_client);
    exchange(full);
    EQUAL(option(small->server, SOL_SOCKET, SO_RCVBUF), 16000);
    EQUAL(option(small->client, SOL_SOCKET, SO_SNDBUF), 40000);
    read_pattern(small->server, small_sent);
    read_pattern(gone->server, gone_sent);
    EQUAL(recv(gone->server, in, sizeof in, 0), 0);
    EQUAL(recv(small->server, in, 10, 0), 0);

    EQUAL(recv(half->server, in, 10, 0), 4);
    EQUAL(recv(half->server, in, 10, 0), 0);
    EQUAL(send(half->server, "more", 4, 0), 4);
    await(half->client, POLLIN);
    EQUAL(recv(half->client, in, 20, 0), 10);
    EXPECT(memcmp(in, "answermore", 10) == 0);
    EQUAL(send(half->client, "x", 1, 0), -1);
    EQUAL(errno, EPIPE);
    close(half->server);
    EQUAL(recv(half->client, in, 20, 0), 0);

    same(peer_address(closed->client), closed->server_at);
    EQUAL(recv(closed->client, in, 10, 0), 7);
    EXPECT(memcmp(in, "goodbye", 7) == 0);
    EQUAL(recv(closed->client, in, 10, 0), 0);
    EQUAL(send(closed->client, "x", 1, 0), 1);
    await(closed->client, POLLERR);
    EQUAL(send(closed->client, "x", 1, 0), -1);
    EQUAL(errno, EPIPE);

    EQUAL(recv(over->server, in, 10, 0), 3);
    EQUAL(recv(over->server, in, 10, 0), 0);
    EQUAL(recv(over->client, in, 10, 0), 0);
    EQUAL(peer_address(over->client).any.sa_family, 0);
    EQUAL(send(over->client, "x", 1, 0), -1);
    EQUAL(errno, EPIPE);

    EQUAL(recv(reset->client, in, 10, 0), 6);
    EQUAL(recv(reset->client, in, 10, 0), -1);
    EQUAL(errno, ECONNRESET);
    EQUAL(recv(reset->client, in, 10, 0), 0);

    EQUAL(recv(deaf->client, in, 10, 0), 0);
    EQUAL(send(deaf->client, "heard", 5, 0), 5);
    EQUAL(recv(deaf->server, in, 10, 0), 5);

    EQUAL(recv(corked->server, in, 10, 0), 6);
    EQUAL(option(corked->client, IPPROTO_TCP, TCP_CORK), 1);

    EQUAL(recv(urgent->server, in, 20, 0), 6);
    EQUAL(ioctl(urgent->server, SIOCATMARK, &o), 0);
    EQUAL(o, 1);
    EQUAL(recv(urgent->server, in, 20, MSG_OOB), 1);
    EQUAL(in[0], '!');
    EQUAL(recv(urgent->server, in, 20, 0), 5);
    EQUAL(recv(in_line->server, in, 20, 0), 2);
    EQUAL(recv(in_line->server, in, 20, 0), 2);
    EXPECT(memcmp(in, "cd", 2) == 0);

    o = options->client;
    EQUAL(option(o, IPPROTO_TCP, TCP_NODELAY), 1);
    EQUAL(option(o, SOL_SOCKET, SO_KEEPALIVE), 1);
    EQUAL(option(o, IPPROTO_TCP, TCP_KEEPIDLE), 111);
    EQUAL(option(o, IPPROTO_TCP, TCP_KEEPINTVL), 22);
    EQUAL(option(o, IPPROTO_TCP, TCP_KEEPCNT), 3);
    EQUAL(option(o, IPPROTO_TCP, TCP_USER_TIMEOUT), 44444);
    EQUAL(option(o, IPPROTO_IP, IP_TOS), 0x10);
    EQUAL(option(o, IPPROTO_IP, IP_TTL), 33);
    EQUAL(option(o, SOL_SOCKET, SO_PRIORITY), 3);
    EQUAL(option(o, SOL_SOCKET, SO_OOBINLINE), 1);
    EQUAL(option(o, SOL_SOCKET, SO_RCVLOWAT), 5);
    EQUAL(option(o, SOL_SOCKET, SO_SNDBUF), send_buffer);
    EQUAL(option(o, SOL_SOCKET, SO_RCVBUF), receive_buffer);
    EQUAL(option(o, SOL_SOCKET, SO_REUSEADDR), 0);
    struct linger got;
    socklen_t length = sizeof got;
    EQUAL(getsockopt(o, SOL_SOCKET, SO_LINGER, &got, &length), 0);
    EXPECT(got.l_onoff == 1 && got.l_linger == 7);
    length = sizeof timeout;
    EQUAL(getsockopt(o, SOL_SOCKET, SO_RCVTIMEO, &timeout, &length), 0);
    EXPECT(timeout.tv_sec == 3 && timeout.tv_usec == 500000);
    EQUAL(getsockopt(o, SOL_SOCKET, SO_SNDTIMEO, &timeout, &length), 0);
    EXPECT(timeout.tv_sec == 9 && timeout.tv_usec == 500000);
    EQUAL(option(options->server, IPPROTO_TCP, TCP_NODELAY), 0);
    return finish();
}
