#include "inet.h"

static void expect_from(int receiver, union address from, const char *content) {
    char in[100];
    union address sender;
    socklen_t length = sizeof sender;
    memset(&sender, 0, sizeof sender);
    ssize_t n = recvfrom(receiver, in, sizeof in, MSG_DONTWAIT, &sender.any, &length);
    EQUAL(n, strlen(content));
    EXPECT(n >= 0 && memcmp(in, content, n) == 0);
    EQUAL(port_of(&sender), port_of(&from));
    EQUAL(memcmp(&sender, &from, sizeof from), 0);
}

static void send_from(int sender, union address to, const char *content) {
    EQUAL(sendto(sender, content, strlen(content), 0, &to.any, length_of(&to)), strlen(content));
}

int main(void) {
    char in[100];
    int fresh = socket(AF_INET, SOCK_DGRAM, 0);
    set(fresh, SOL_SOCKET, SO_BROADCAST, 1);
    set(fresh, IPPROTO_IP, IP_MULTICAST_TTL, 9);
    set(fresh, IPPROTO_IP, IP_MULTICAST_LOOP, 0);
    set(fresh, IPPROTO_IP, IP_PKTINFO, 1);

    int a = bound(SOCK_DGRAM, "127.0.0.1", 0), b = bound(SOCK_DGRAM, "127.0.0.1", 0), any = bound(SOCK_DGRAM, "0.0.0.0", 0);
    int six = bound(SOCK_DGRAM, "::1", 0), gone = bound(SOCK_DGRAM, "127.0.0.7", 0);
    union address a_at = own_address(a), b_at = own_address(b), any_at = own_address(any), six_at = own_address(six);
    union address gone_at = own_address(gone), to_any = address("127.0.0.1", port_of(&any_at));
    send_from(b, a_at, "from b");
    send_from(any, a_at, "from any");
    send_from(gone, a_at, "from one that is gone");
    send_from(b, a_at, "from b again");
    send_from(a, to_any, "to any");
    send_from(six, six_at, "to itself");
    close(gone);

    // Connected to each other, with something on its way.
    int east = bound(SOCK_DGRAM, "127.0.0.1", 0), west = bound(SOCK_DGRAM, "127.0.0.1", 0);
    union address east_at = own_address(east), west_at = own_address(west);
    EQUAL(connect(east, &west_at.any, sizeof west_at.v4), 0);
    EQUAL(connect(west, &east_at.any, sizeof east_at.v4), 0);
    EQUAL(send(east, "right", 5, 0), 5);
    // Connected without an address of its own before.
    int client = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0);
    EQUAL(connect(client, &b_at.any, sizeof b_at.v4), 0);
    union address client_at = own_address(client);

    // Several that share a port: each keeps what it has.
    int shared[3], counts[3] = {0};
    union address shared_at = address("127.0.0.1", 0);
    for (int i = 0; i < 3; i++) {
        shared[i] = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0);
        set(shared[i], SOL_SOCKET, SO_REUSEPORT, 1);
        EQUAL(bind(shared[i], &shared_at.any, sizeof shared_at.v4), 0);
        shared_at = own_address(shared[0]);
    }
    for (int i = 0; i < 30; i++) {
        int sender = socket(AF_INET, SOCK_DGRAM, 0);
        send_from(sender, shared_at, "spread");
        close(sender);
    }
    for (int i = 0; i < 3; i++)
        while (counts[i] < 5 && recv(shared[i], in, sizeof in, 0) > 0) counts[i]++;
    // What is east now is to stay where it is.
    int total = 0;
    for (int i = 0; i < 3; i++) total += counts[i];

    int large = bound(SOCK_DGRAM, "127.0.0.1", 0);
    set(large, SOL_SOCKET, SO_RCVBUF, 1 << 20);
    int size = option(large, SOL_SOCKET, SO_RCVBUF);
    union address large_at = own_address(large);
    static char block[60000];
    for (int i = 0; i < 5; i++) {
        memset(block, 'a' + i, sizeof block);
        EQUAL(sendto(a, block, sizeof block, 0, &large_at.any, sizeof large_at.v4), sizeof block);
    }
    EQUAL(sendto(a, "", 0, 0, &b_at.any, sizeof b_at.v4), 0);

    pause_here();

    EQUAL(option(fresh, SOL_SOCKET, SO_BROADCAST), 1);
    EQUAL(option(fresh, IPPROTO_IP, IP_MULTICAST_TTL), 9);
    EQUAL(option(fresh, IPPROTO_IP, IP_MULTICAST_LOOP), 0);
    EQUAL(option(fresh, IPPROTO_IP, IP_PKTINFO), 1);
    union address now = own_address(fresh);
    EQUAL(port_of(&now), 0);

    expect_from(a, b_at, "from b");
    expect_from(a, to_any, "from any");
    expect_from(a, gone_at, "from one that is gone");
    expect_from(a, b_at, "from b again");
    EQUAL(recv(a, in, sizeof in, MSG_DONTWAIT), -1);
    expect_from(any, a_at, "to any");
    expect_from(six, six_at, "to itself");
    now = own_address(any);
    EQUAL(memcmp(&now, &any_at, sizeof now), 0);

    EQUAL(recv(west, in, sizeof in, MSG_DONTWAIT), 5);
    EQUAL(send(west, "left!", 5, 0), 5);
    EQUAL(recv(east, in, sizeof in, 0), 5);
    now = peer_address(client);
    EQUAL(memcmp(&now, &b_at, sizeof now), 0);
    now = own_address(client);
    EQUAL(memcmp(&now, &client_at, sizeof now), 0);
    EQUAL(fcntl(client, F_GETFL), O_RDWR | O_NONBLOCK);
    expect_from(b, a_at, "");
    EQUAL(send(client, "hello", 5, 0), 5);
    expect_from(b, client_at, "hello");

    for (int i = 0; i < 3; i++)
        while (recv(shared[i], in, sizeof in, 0) > 0) total++;
    EQUAL(total, 30);

    EQUAL(option(large, SOL_SOCKET, SO_RCVBUF), size);
    for (int i = 0; i < 5; i++) {
        EQUAL(recv(large, block, sizeof block, MSG_DONTWAIT), sizeof block);
        EQUAL(block[0], 'a' + i);
        EQUAL(block[sizeof block - 1], 'a' + i);
    }
    return finish();
}
