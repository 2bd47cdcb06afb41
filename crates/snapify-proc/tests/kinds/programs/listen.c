#include "inet.h"

static int begin_connecting(int listener, const char *host) {
    union address own = own_address(listener);
    union address to = address(host, port_of(&own));
    int made = socket(to.any.sa_family, SOCK_STREAM | SOCK_NONBLOCK, 0);
    int error = connect(made, &to.any, length_of(&to)) ? errno : 0;
    EXPECT(error == 0 || error == EINPROGRESS);
    return made;
}

static int state_of(int socket) {
    struct tcp_info info;
    socklen_t length = sizeof info;
    EQUAL(getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &length), 0);
    return info.tcpi_state;
}

// Accepts the connection of a client.
static void accept_of(int listener, int client) {
    char in[8];
    union address from, wanted = own_address(client);
    socklen_t length = sizeof from;
    memset(&from, 0, sizeof from);
    await(listener, POLLIN);
    int accepted = accept(listener, &from.any, &length);
    EXPECT(accepted >= 0);
    EQUAL(port_of(&from), port_of(&wanted));
    EQUAL(send(client, "x", 1, 0), 1);
    EQUAL(recv(accepted, in, 8, 0), 1);
    close(accepted);
}

// A new connection can be made.
static void works(int listener, const char *host) {
    int client = connected_to(host, listener);
    accept_of(listener, client);
    close(client);
}

int main(void) {
    char in[100];
    signal(SIGPIPE, SIG_IGN);
    int plain = listening("127.0.0.1", 7), any = listening("0.0.0.0", 100), both = listening("::", 100);
    union address plain_at = own_address(plain), both_at = own_address(both);

    // Who accepted a connection shares the address with the listener; neither of them lets others use it.
    int served = connected_to("127.0.0.1", plain), server = accept(plain, NULL, NULL);
    EXPECT(server >= 0);
    // One that was closed by the server, which the kernel remembers.
    int past = connected_to("127.0.0.1", plain), gone = accept(plain, NULL, NULL);
    close(gone);
    close(past);

    // The same port for each family. It may be free for one only.
    int only6, only4;
    for (;;) {
        only6 = socket(AF_INET6, SOCK_STREAM, 0);
        set(only6, IPPROTO_IPV6, IPV6_V6ONLY, 1);
        union address six = address("::", 0);
        EQUAL(bind(only6, &six.any, sizeof six.v6), 0);
        six = own_address(only6);
        union address four = address("0.0.0.0", port_of(&six));
        only4 = socket(AF_INET, SOCK_STREAM, 0);
        if (bind(only4, &four.any, sizeof four.v4) == 0) break;
        close(only6);
        close(only4);
    }
    EQUAL(listen(only6, 5), 0);
    EQUAL(listen(only4, 5), 0);

    // Several that share a port.
    int shared[3];
    union address shared_at = address("127.0.0.1", 0);
    for (int i = 0; i < 3; i++) {
        shared[i] = socket(AF_INET, SOCK_STREAM, 0);
        set(shared[i], SOL_SOCKET, SO_REUSEPORT, 1);
        EQUAL(bind(shared[i], &shared_at.any, sizeof shared_at.v4), 0);
        EQUAL(listen(shared[i], 50), 0);
        shared_at = own_address(shared[0]);
    }
    // One of them would not let another in any more.
    set(shared[1], SOL_SOCKET, SO_REUSEPORT, 0);

    // They wait to be accepted, in this order.
    int queue = listening("127.0.0.1", 50), waiting[5];
    for (int i = 0; i < 5; i++) waiting[i] = connected_to("127.0.0.1", queue);
    int queue6 = listening("::", 50), waiting6 = connected_to("::1", queue6), waiting4 = connected_to("127.0.0.1", queue6);
    // This one has been closed meanwhile, and that one has said that it will send nothing.
    int abandoned = listening("127.0.0.1", 50), leaving = connected_to("127.0.0.1", abandoned);
    close(leaving);
    int quiet = listening("127.0.0.1", 50), silent = connected_to("127.0.0.1", quiet);
    EQUAL(shutdown(silent, SHUT_WR), 0);

    // These have already sent something.
    int eager = listening("127.0.0.1", 50), early[4];
    for (int i = 0; i < 4; i++) early[i] = connected_to("127.0.0.1", eager);
    EQUAL(send(early[1], "early", 5, 0), 5);
    EQUAL(send(early[2], "and done", 8, 0), 8);
    EQUAL(shutdown(early[2], SHUT_WR), 0);
    EQUAL(send(early[3], "and gone", 8, 0), 8);
    union address early_at[4];
    for (int i = 0; i < 4; i++) early_at[i] = own_address(early[i]);
    close(early[3]);

    // Accepted only when data comes.
    int deferred = listening("127.0.0.1", 50);
    set(deferred, IPPROTO_TCP, TCP_DEFER_ACCEPT, 3);
    int defer = option(deferred, IPPROTO_TCP, TCP_DEFER_ACCEPT);
    int mute = connected_to("127.0.0.1", deferred);

    // There is no room for the last.
    int crowded = listening("127.0.0.1", 0), first = begin_connecting(crowded, "127.0.0.1");
    int late = begin_connecting(crowded, "127.0.0.1");
    EQUAL(state_of(late), TCP_SYN_SENT);
    union address late_at = own_address(late);

    // Addresses without anything else.
    int fresh = socket(AF_INET, SOCK_STREAM, 0), fresh6 = socket(AF_INET6, SOCK_STREAM, 0);
    set(fresh, SOL_SOCKET, SO_REUSEADDR, 1);
    set(fresh, IPPROTO_TCP, TCP_MAXSEG, 700);
    int idle = bound(SOCK_STREAM, "127.0.0.1", 0);
    union address idle_at = own_address(idle);
    int host = socket(AF_INET, SOCK_STREAM, 0);
    union address host_at = address("127.0.0.5", 0);
    set(host, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1);
    EQUAL(bind(host, &host_at.any, sizeof host_at.v4), 0);

    // Refused: the error has not been asked for, or has.
    int deaf = bound(SOCK_STREAM, "127.0.0.1", 0);
    int refused = begin_connecting(deaf, "127.0.0.1"), told = begin_connecting(deaf, "127.0.0.1");
    await(told, POLLERR);
    EQUAL(option(told, SOL_SOCKET, SO_ERROR), ECONNREFUSED);

    pause_here();

    union address now = own_address(plain);
    EQUAL(memcmp(&now, &plain_at, sizeof now), 0);
    now = own_address(both);
    EQUAL(memcmp(&now, &both_at, sizeof now), 0);
    EQUAL(option(plain, SOL_SOCKET, SO_ACCEPTCONN), 1);
    EQUAL(option(plain, SOL_SOCKET, SO_REUSEADDR), 0);
    struct tcp_info info;
    socklen_t length = sizeof info;
    EQUAL(getsockopt(plain, IPPROTO_TCP, TCP_INFO, &info, &length), 0);
    EQUAL(info.tcpi_sacked, 7);
    works(plain, "127.0.0.1");
    works(any, "127.0.0.1");
    works(both, "127.0.0.1");
    works(both, "::1");
    works(only4, "127.0.0.1");
    works(only6, "::1");
    EQUAL(option(only6, IPPROTO_IPV6, IPV6_V6ONLY), 1);
    EQUAL(send(served, "served", 6, 0), 6);
    EQUAL(recv(server, in, 10, 0), 6);
    EQUAL(option(server, SOL_SOCKET, SO_REUSEADDR), 0);

    int arrived = 0;
    for (int i = 0; i < 20; i++) close(connected_to("127.0.0.1", shared[0]));
    for (int i = 0; i < 3; i++) {
        EQUAL(option(shared[i], SOL_SOCKET, SO_REUSEPORT), i != 1);
        fcntl(shared[i], F_SETFL, O_NONBLOCK);
        for (int got; (got = accept(shared[i], NULL, NULL)) >= 0; close(got)) arrived++;
    }
    EXPECT(arrived > 5);

    for (int i = 0; i < 5; i++) accept_of(queue, waiting[i]);
    fcntl(queue, F_SETFL, O_NONBLOCK);
    EQUAL(accept(queue, NULL, NULL), -1);
    accept_of(queue6, waiting6);
    accept_of(queue6, waiting4);
    int accepted = accept(abandoned, NULL, NULL);
    EQUAL(recv(accepted, in, 10, 0), 0);
    accepted = accept(quiet, NULL, NULL);
    EQUAL(recv(accepted, in, 10, 0), 0);
    EQUAL(send(accepted, "talk", 4, 0), 4);
    EQUAL(recv(silent, in, 10, 0), 4);

    for (int i = 0; i < 4; i++) {
        socklen_t size = sizeof now;
        accepted = accept(eager, &now.any, &size);
        EQUAL(port_of(&now), port_of(&early_at[i]));
        memset(in, 0, sizeof in);
        if (i == 0) EQUAL(send(early[i], "late", 4, 0), 4);
        const char *sent[] = {"late", "early", "and done", "and gone"};
        EQUAL(recv(accepted, in, sizeof in, 0), strlen(sent[i]));
        EQUAL(strcmp(in, sent[i]), 0);
        if (i > 1) EQUAL(recv(accepted, in, sizeof in, 0), 0);
        if (i < 3) {
            EQUAL(send(accepted, "answer", 6, 0), 6);
            EQUAL(recv(early[i], in, sizeof in, 0), 6);
        }
    }

    EQUAL(option(deferred, IPPROTO_TCP, TCP_DEFER_ACCEPT), defer);
    fcntl(deferred, F_SETFL, O_NONBLOCK);
    EQUAL(accept(deferred, NULL, NULL), -1);
    EQUAL(send(mute, "now", 3, 0), 3);
    await(deferred, POLLIN);
    accepted = accept(deferred, NULL, NULL);
    EQUAL(recv(accepted, in, 10, 0), 3);

    now = own_address(late);
    EQUAL(memcmp(&now, &late_at, sizeof now), 0);
    accept_of(crowded, first);
    accept_of(crowded, late);

    EQUAL(option(fresh, SOL_SOCKET, SO_REUSEADDR), 1);
    EQUAL(option(fresh, IPPROTO_TCP, TCP_MAXSEG), 700);
    EQUAL(option(fresh6, SOL_SOCKET, SO_DOMAIN), AF_INET6);
    EQUAL(connect(fresh, &plain_at.any, sizeof plain_at.v4), 0);
    now = own_address(idle);
    EQUAL(memcmp(&now, &idle_at, sizeof now), 0);
    EQUAL(listen(idle, 1), 0);
    works(idle, "127.0.0.1");
    now = own_address(host);
    EQUAL(memcmp(&now, &host_at, sizeof now), 0);
    EQUAL(connect(host, &plain_at.any, sizeof plain_at.v4), 0);
    now = own_address(host);
    EQUAL(now.v4.sin_addr.s_addr, host_at.v4.sin_addr.s_addr);

    await(refused, POLLERR);
    EQUAL(option(refused, SOL_SOCKET, SO_ERROR), ECONNREFUSED);
    EQUAL(option(told, SOL_SOCKET, SO_ERROR), 0);
    // It is still connecting as far as the first call that asks is concerned.
    EQUAL(connect(told, &plain_at.any, sizeof plain_at.v4), -1);
    EQUAL(errno, ECONNABORTED);
    int error = connect(told, &plain_at.any, sizeof plain_at.v4) ? errno : 0;
    EXPECT(error == 0 || error == EINPROGRESS);
    return finish();
}
