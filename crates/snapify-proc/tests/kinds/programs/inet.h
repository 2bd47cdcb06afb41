// Sockets for the tests of TCP and UDP.
#include "check.h"
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

union address {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
};

__attribute__((unused)) static socklen_t length_of(const union address *at) {
    return at->any.sa_family == AF_INET ? sizeof at->v4 : sizeof at->v6;
}

__attribute__((unused)) static union address address(const char *host, int port) {
    union address at;
    memset(&at, 0, sizeof at);
    if (inet_pton(AF_INET, host, &at.v4.sin_addr) == 1) {
        at.v4.sin_family = AF_INET;
        at.v4.sin_port = htons(port);
    } else {
        EQUAL(inet_pton(AF_INET6, host, &at.v6.sin6_addr), 1);
        at.v6.sin6_family = AF_INET6;
        at.v6.sin6_port = htons(port);
    }
    return at;
}

__attribute__((unused)) static int port_of(const union address *at) {
    return ntohs(at->any.sa_family == AF_INET ? at->v4.sin_port : at->v6.sin6_port);
}

__attribute__((unused)) static union address own_address(int socket) {
    union address at;
    socklen_t length = sizeof at;
    memset(&at, 0, sizeof at);
    EQUAL(getsockname(socket, &at.any, &length), 0);
    return at;
}

// Of no family if there is none.
__attribute__((unused)) static union address peer_address(int socket) {
    union address at;
    socklen_t length = sizeof at;
    memset(&at, 0, sizeof at);
    if (getpeername(socket, &at.any, &length)) at.any.sa_family = 0;
    return at;
}

__attribute__((unused)) static int option(int socket, int level, int name) {
    int value = -1;
    socklen_t length = sizeof value;
    EQUAL(getsockopt(socket, level, name, &value, &length), 0);
    return value;
}

__attribute__((unused)) static void set(int socket, int level, int name, int value) {
    EQUAL(setsockopt(socket, level, name, &value, sizeof value), 0);
}

__attribute__((unused)) static int bound(int type, const char *host, int port) {
    union address at = address(host, port);
    int made = socket(at.any.sa_family, type, 0);
    EXPECT(made >= 0);
    EQUAL(bind(made, &at.any, length_of(&at)), 0);
    return made;
}

__attribute__((unused)) static int listening(const char *host, int backlog) {
    int made = bound(SOCK_STREAM, host, 0);
    EQUAL(listen(made, backlog), 0);
    return made;
}

__attribute__((unused)) static int connected_to(const char *host, int listener) {
    union address own = own_address(listener);
    union address to = address(host, port_of(&own));
    int made = socket(to.any.sa_family, SOCK_STREAM, 0);
    EXPECT(made >= 0);
    EQUAL(connect(made, &to.any, length_of(&to)), 0);
    return made;
}

// Reads until nothing is left or the end; returns how much there was.
__attribute__((unused)) static size_t drain(int socket, char *into, size_t most) {
    size_t have = 0;
    for (ssize_t n; have < most && (n = recv(socket, into + have, most - have, MSG_DONTWAIT)) > 0;) have += n;
    return have;
}

// Waits until something can be read, the end included.
__attribute__((unused)) static void await(int socket, short event) {
    struct pollfd polled = {.fd = socket, .events = event};
    EQUAL(poll(&polled, 1, 10000), 1);
}
