// Connects to a port of somebody else, and says what has become of it.
#include "inet.h"

int main(int count, char **arguments) {
    char in[100];
    signal(SIGPIPE, SIG_IGN);
    EQUAL(count, 2);
    union address at = address("127.0.0.1", atoi(arguments[1]));
    int peer = socket(AF_INET, SOCK_STREAM, 0);
    EQUAL(connect(peer, &at.any, sizeof at.v4), 0);
    await(peer, POLLIN);
    pause_here();
    EQUAL(recv(peer, in, 4, 0), 4);
    EQUAL(recv(peer, in, 100, MSG_DONTWAIT), 8);
    EXPECT(memcmp(in, " outside", 8) == 0);
    ssize_t n = recv(peer, in, 100, MSG_DONTWAIT);
    if (n < 0) {
        EQUAL(send(peer, "still here", 10, 0), 10);
        printf("connected\n");
        return finish();
    }
    EQUAL(n, 0);
    EQUAL(send(peer, "x", 1, 0), -1);
    EQUAL(errno, EPIPE);
    printf("closed\n");
    return finish();
}
