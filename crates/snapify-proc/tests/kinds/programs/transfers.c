// Threads in the middle of transfers that do not fit: each returns all of it in the end, as if nobody had stopped it.
#include "check.h"
#include <arpa/inet.h>
#include <sys/socket.h>
#include <sys/uio.h>

#define BYTES 700000

static char pattern[BYTES];
static int pipe_ends[2], stream[2], waiting[2], lazy[2];
static int client, server;
static ssize_t results[6];

static void *writes(void *x) {
    results[0] = write(pipe_ends[1], pattern, BYTES);
    return x;
}

static void *writes_several(void *x) {
    struct iovec parts[] = {{pattern, 1000}, {pattern + 1000, 399000}, {0, 0}, {pattern + 400000, BYTES - 400000}};
    results[1] = writev(stream[0], parts, 4);
    return x;
}

static void *sends(void *x) {
    results[2] = send(client, pattern, BYTES, 0);
    return x;
}

static void *receives(void *x) {
    char *buffer = malloc(BYTES);
    results[3] = recv(waiting[0], buffer, BYTES, MSG_WAITALL);
    if (memcmp(buffer, pattern, BYTES)) results[3] = -2;
    free(buffer);
    return x;
}

// Its peer goes away: what was written counts, and the end is told by the next call.
static void *is_left(void *x) {
    results[4] = send(lazy[0], pattern, BYTES, MSG_NOSIGNAL);
    results[5] = send(lazy[0], pattern, BYTES, MSG_NOSIGNAL);
    return x;
}

static void drain(int fd, size_t wanted) {
    static char buffer[65536];
    size_t have = 0;
    while (have < wanted) {
        size_t most = wanted - have < sizeof buffer ? wanted - have : sizeof buffer;
        ssize_t n = read(fd, buffer, most);
        if (n <= 0) break;
        if (memcmp(buffer, pattern + have, n)) break;
        have += n;
    }
    EQUAL(have, wanted);
}

static void connect_pair(void) {
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t length = sizeof address;
    bind(listener, (struct sockaddr *)&address, sizeof address);
    listen(listener, 1);
    getsockname(listener, (struct sockaddr *)&address, &length);
    client = socket(AF_INET, SOCK_STREAM, 0);
    int small = 16384;
    setsockopt(client, SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
    EQUAL(connect(client, (struct sockaddr *)&address, sizeof address), 0);
    server = accept(listener, 0, 0);
    close(listener);
}

// Until it waits in the kernel.
static void let_sleep(pid_t tid) {
    char path[64], text[512], state = 0;
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", tid);
    while (state != 'S') {
        int fd = open(path, O_RDONLY);
        ssize_t n = read(fd, text, sizeof text - 1);
        close(fd);
        text[n > 0 ? n : 0] = 0;
        char *end = strrchr(text, ')');
        state = end ? end[2] : 0;
    }
}

static pid_t tids[5];
static void *(*const jobs[])(void *) = {writes, writes_several, sends, receives, is_left};

static void *start(void *x) {
    intptr_t n = (intptr_t)x;
    __atomic_store_n(&tids[n], gettid(), __ATOMIC_SEQ_CST);
    return jobs[n](x);
}

int main(void) {
    for (size_t i = 0; i < BYTES; i++) pattern[i] = (char)(i * 31 >> 3);
    EQUAL(pipe(pipe_ends), 0);
    EQUAL(socketpair(AF_UNIX, SOCK_STREAM, 0, stream), 0);
    EQUAL(socketpair(AF_UNIX, SOCK_STREAM, 0, waiting), 0);
    EQUAL(socketpair(AF_UNIX, SOCK_STREAM, 0, lazy), 0);
    connect_pair();
    EQUAL(write(waiting[1], pattern, 5000), 5000);
    pthread_t threads[5];
    for (intptr_t n = 0; n < 5; n++) {
        pthread_create(&threads[n], NULL, start, (void *)n);
        while (!__atomic_load_n(&tids[n], __ATOMIC_SEQ_CST)) sched_yield();
        let_sleep(tids[n]);
    }

    pause_here();

    drain(pipe_ends[0], BYTES);
    drain(stream[1], BYTES);
    drain(server, BYTES);
    for (size_t done = 5000; done < BYTES;) {
        ssize_t n = write(waiting[1], pattern + done, BYTES - done);
        EXPECT(n > 0);
        if (n <= 0) break;
        done += n;
    }
    close(lazy[1]);
    for (int n = 0; n < 5; n++) pthread_join(threads[n], NULL);
    for (int n = 0; n < 4; n++) EQUAL(results[n], BYTES);
    EXPECT(results[4] > 0 && results[4] < BYTES);
    EQUAL(results[5], -1);
    return finish();
}
