// A server and its clients, each a process; requests are on their way when it is saved.
#include "inet.h"

enum { CLIENTS = 3 };

// Asks and checks the answers until told to stop.
static int client(union address at, int number, int stop) {
    int server = socket(AF_INET, SOCK_STREAM, 0);
    EQUAL(connect(server, &at.any, sizeof at.v4), 0);
    char polled;
    for (unsigned round = 0; read(stop, &polled, 1) < 0; round++) {
        unsigned request[2] = {number, round}, answer[2] = {0};
        EQUAL(send(server, request, sizeof request, 0), sizeof request);
        EQUAL(recv(server, answer, sizeof answer, MSG_WAITALL), sizeof answer);
        EXPECT(answer[0] == (unsigned)number && answer[1] == round + 1);
        if (failures) break;
    }
    return failures != 0;
}

static int serve(int listener) {
    struct pollfd watched[CLIENTS + 1] = {{.fd = listener, .events = POLLIN}};
    int count = 1, ended = 0;
    while (ended < CLIENTS) {
        if (poll(watched, count, -1) < 0) continue;
        if (watched[0].revents & POLLIN) watched[count++] = (struct pollfd){.fd = accept(listener, NULL, NULL), .events = POLLIN};
        for (int i = 1; i < count; i++) {
            unsigned request[2];
            if (!(watched[i].revents & (POLLIN | POLLHUP))) continue;
            ssize_t n = recv(watched[i].fd, request, sizeof request, MSG_WAITALL);
            if (n <= 0) {
                watched[i].fd = -1;
                ended++;
                continue;
            }
            request[1]++;
            EQUAL(send(watched[i].fd, request, sizeof request, 0), sizeof request);
        }
    }
    return failures != 0;
}

int main(void) {
    signal(SIGPIPE, SIG_IGN);
    int listener = listening("127.0.0.1", 10), stop[2], status;
    union address at = own_address(listener);
    EQUAL(pipe2(stop, O_NONBLOCK), 0);
    fflush(stdout);
    if (fork() == 0) return close(stop[1]), serve(listener);
    close(listener);
    for (int i = 0; i < CLIENTS; i++)
        if (fork() == 0) return close(stop[1]), client(at, i, stop[0]);
    pause_here();
    close(stop[1]);
    for (int i = 0; i < CLIENTS + 1; i++) {
        EXPECT(wait(&status) > 0);
        EQUAL(status, 0);
    }
    return finish();
}
