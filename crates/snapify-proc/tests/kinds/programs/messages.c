// Threads in the middle of transfers of many parts, that take and give more than there is or fits: each returns all of it in the end, as
// if nobody had stopped it.
#include "check.h"
#include <sys/random.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>

#define BYTES 700000
#define PARTS 20
#define MESSAGES 40
#define JOBS 9

static char pattern[BYTES], received[BYTES];
static int several[2], plain[2], streams[2], waiting[2], packets[2], few[2], sent[2], sent_at[2], file;
static volatile int over;
static long results[JOBS];

static void part(struct iovec *parts, char *memory) {
    for (int i = 0; i < PARTS; i++) {
        size_t from = (size_t)BYTES * i / PARTS, to = (size_t)BYTES * (i + 1) / PARTS;
        parts[i] = (struct iovec){memory + from, to - from};
    }
}

static void *writes(void *x) {
    struct iovec parts[PARTS];
    part(parts, pattern);
    results[0] = writev(several[1], parts, PARTS);
    return x;
}

static void *writes_with_flags(void *x) {
    struct iovec parts[PARTS];
    part(parts, pattern);
    results[1] = pwritev2(plain[1], parts, 3, -1, 0) + writev(plain[1], parts + 3, PARTS - 3);
    return x;
}

// What goes along goes once.
static void *sends(void *x) {
    struct iovec parts[PARTS];
    part(parts, pattern);
    char space[CMSG_SPACE(sizeof(int))] = {0};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = PARTS, .msg_control = space, .msg_controllen = sizeof space};
    struct cmsghdr *control = CMSG_FIRSTHDR(&message);
    *control = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    memcpy(CMSG_DATA(control), &file, sizeof file);
    results[2] = sendmsg(streams[0], &message, 0);
    EQUAL(message.msg_iovlen, PARTS);
    return x;
}

static void *receives(void *x) {
    struct iovec parts[PARTS];
    part(parts, received);
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 3};
    results[3] = recvmsg(waiting[0], &message, MSG_WAITALL);
    return x;
}

// There is room for a few datagrams that nobody has read.
static void *sends_messages(void *x) {
    struct iovec parts[MESSAGES];
    struct mmsghdr messages[MESSAGES] = {0};
    for (int i = 0; i < MESSAGES; i++) {
        parts[i] = (struct iovec){pattern + i, 1 + i};
        messages[i].msg_hdr = (struct msghdr){.msg_iov = &parts[i], .msg_iovlen = 1};
    }
    results[4] = sendmmsg(packets[0], messages, MESSAGES, 0);
    for (int i = 0; i < MESSAGES; i++) EQUAL(messages[i].msg_len, 1 + i);
    return x;
}

static void *receives_messages(void *x) {
    struct iovec parts[8];
    struct mmsghdr messages[8] = {0};
    char buffers[8][16];
    for (int i = 0; i < 8; i++) {
        parts[i] = (struct iovec){buffers[i], 16};
        messages[i].msg_hdr = (struct msghdr){.msg_iov = &parts[i], .msg_iovlen = 1};
    }
    results[5] = recvmmsg(few[0], messages, 8, 0, 0);
    for (int i = 0; i < 8; i++) EXPECT(messages[i].msg_len == 1 && buffers[i][0] == 'a' + i);
    // No error of the kernel's own is left over.
    EQUAL(recv(few[0], buffers[0], 16, MSG_DONTWAIT), -1);
    EQUAL(errno, EAGAIN);
    return x;
}

static void *sends_file(void *x) {
    results[6] = sendfile(sent[1], file, 0, BYTES);
    EQUAL(lseek(file, 0, SEEK_CUR), BYTES);
    return x;
}

static void *sends_file_from(void *x) {
    off_t offset = 1000;
    results[7] = sendfile(sent_at[1], file, &offset, BYTES);
    EQUAL(offset, BYTES);
    return x;
}

// Devices that never end give all that is asked for, at once; never less because of a stop.
static void *reads_zeros(void *x) {
    size_t bytes = 16 << 20;
    char *memory = malloc(bytes);
    int zero = open("/dev/zero", O_RDONLY), random = open("/dev/urandom", O_RDONLY);
    while (!over) {
        EQUAL(read(zero, memory, bytes), bytes);
        EQUAL(read(random, memory, 1 << 20), 1 << 20);
        EQUAL(getrandom(memory, 1 << 20, 0), 1 << 20);
    }
    results[8] = 1;
    free(memory);
    return x;
}

static void drain(int fd, size_t from) {
    static char buffer[65536];
    size_t have = from;
    while (have < BYTES) {
        size_t most = BYTES - have < sizeof buffer ? BYTES - have : sizeof buffer;
        ssize_t n = read(fd, buffer, most);
        if (n <= 0 || memcmp(buffer, pattern + have, n)) break;
        have += n;
    }
    EQUAL(have, BYTES);
}

// Until it waits in the kernel.
static void let_sleep(pid_t tid) {
    char path[64], text[512], state = 0;
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", tid);
    while (state != 'S') {
        int fd = open(path, O_RDONLY);
        EXPECT(fd >= 0);
        if (fd < 0) break;
        ssize_t n = read(fd, text, sizeof text - 1);
        close(fd);
        text[n > 0 ? n : 0] = 0;
        char *end = strrchr(text, ')');
        state = end ? end[2] : 0;
    }
}

static pid_t tids[JOBS];
static void *(*const jobs[])(void *) = {writes, writes_with_flags, sends, receives, sends_messages, receives_messages, sends_file, sends_file_from, reads_zeros};

static void *start(void *x) {
    intptr_t n = (intptr_t)x;
    __atomic_store_n(&tids[n], gettid(), __ATOMIC_SEQ_CST);
    return jobs[n](x);
}

int main(void) {
    for (size_t i = 0; i < BYTES; i++) pattern[i] = (char)(i * 31 >> 3);
    file = open("file", O_RDWR | O_CREAT | O_TRUNC, 0600);
    EQUAL(write(file, pattern, BYTES), BYTES);
    EQUAL(lseek(file, 0, SEEK_SET), 0);
    EQUAL(pipe(several), 0);
    EQUAL(pipe(plain), 0);
    EQUAL(socketpair(AF_UNIX, SOCK_STREAM, 0, sent), 0);
    EQUAL(socketpair(AF_UNIX, SOCK_STREAM, 0, sent_at), 0);
    EQUAL(socketpair(AF_UNIX, SOCK_STREAM, 0, streams), 0);
    EQUAL(socketpair(AF_UNIX, SOCK_STREAM, 0, waiting), 0);
    EQUAL(socketpair(AF_UNIX, SOCK_DGRAM, 0, packets), 0);
    EQUAL(socketpair(AF_UNIX, SOCK_DGRAM, 0, few), 0);
    int small = 4608;
    EQUAL(setsockopt(packets[0], SOL_SOCKET, SO_SNDBUF, &small, sizeof small), 0);
    EQUAL(write(waiting[1], pattern, 5000), 5000);
    for (int i = 0; i < 3; i++) EQUAL(write(few[1], &"abc"[i], 1), 1);
    pthread_t threads[JOBS];
    for (intptr_t n = 0; n < JOBS; n++) {
        pthread_create(&threads[n], NULL, start, (void *)n);
        while (!__atomic_load_n(&tids[n], __ATOMIC_SEQ_CST)) sched_yield();
        if (jobs[n] != reads_zeros) let_sleep(tids[n]);
    }

    pause_here();

    over = 1;
    drain(several[0], 0);
    drain(plain[0], 0);
    drain(sent[0], 0);
    drain(sent_at[0], 1000);
    char first, space[CMSG_SPACE(sizeof(int))];
    struct iovec one = {&first, 1};
    struct msghdr message = {.msg_iov = &one, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
    EQUAL(recvmsg(streams[1], &message, 0), 1);
    EXPECT(first == pattern[0] && message.msg_controllen == sizeof space);
    drain(streams[1], 1);
    size_t wanted = (size_t)BYTES * 3 / PARTS;
    for (size_t done = 5000; done < wanted;) {
        ssize_t n = write(waiting[1], pattern + done, wanted - done);
        EXPECT(n > 0);
        if (n <= 0) break;
        done += n;
    }
    char packet[64];
    for (int i = 0; i < MESSAGES; i++) EXPECT(read(packets[1], packet, 64) == 1 + i && !memcmp(packet, pattern + i, 1 + i));
    for (int i = 3; i < 8; i++) EQUAL(write(few[1], &"abcdefgh"[i], 1), 1);
    for (int n = 0; n < JOBS; n++) pthread_join(threads[n], NULL);
    EXPECT(!memcmp(received, pattern, wanted));
    long expected[JOBS] = {BYTES, BYTES, BYTES, wanted, MESSAGES, 8, BYTES, BYTES - 1000, 1};
    for (int n = 0; n < JOBS; n++)
        if (results[n] != expected[n]) {
            printf("job %d: %ld, not %ld\n", n, results[n], expected[n]);
            failures++;
        }
    return finish();
}
