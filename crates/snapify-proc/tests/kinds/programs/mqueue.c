// POSIX message queues. The argument is a name that is free.
#include "check.h"
#include <mqueue.h>

static void receives(mqd_t queue, const char *text, unsigned priority) {
    char buffer[200] = "";
    unsigned found = 99;
    EQUAL(mq_receive(queue, buffer, sizeof buffer, &found), strlen(text));
    EXPECT(!strcmp(buffer, text));
    EQUAL(found, priority);
}

int main(int argc, char **argv) {
    const char *name = argv[argc - 1];
    struct mq_attr attributes = {.mq_maxmsg = 5, .mq_msgsize = 100}, now;
    // One without a name that had the same as the next.
    mqd_t gone = mq_open(name, O_RDWR | O_CREAT | O_EXCL, 0600, &attributes);
    EQUAL(mq_unlink(name), 0);
    attributes.mq_msgsize = 200;
    mqd_t both = mq_open(name, O_RDWR | O_CREAT | O_EXCL | O_NONBLOCK, 0640, &attributes);
    mqd_t reader = mq_open(name, O_RDONLY), writer = mq_open(name, O_WRONLY | O_NONBLOCK), copy = dup(reader);
    EQUAL(mq_send(writer, "low", 3, 1), 0);
    EQUAL(mq_send(writer, "high", 4, 30000), 0);
    EQUAL(mq_send(writer, "", 0, 1), 0);
    EQUAL(mq_send(writer, "high too", 8, 30000), 0);
    EQUAL(mq_send(gone, "in the other", 12, 0), 0);
    fcntl(writer, F_SETFD, FD_CLOEXEC);

    pause_here();

    EQUAL(mq_getattr(reader, &now), 0);
    EXPECT(now.mq_maxmsg == 5 && now.mq_msgsize == 200 && now.mq_curmsgs == 4 && now.mq_flags == 0);
    EQUAL(mq_getattr(writer, &now), 0);
    EQUAL(now.mq_flags, O_NONBLOCK);
    EQUAL(fcntl(writer, F_GETFD), FD_CLOEXEC);
    EQUAL(fcntl(reader, F_GETFL) & O_ACCMODE, O_RDONLY);
    EQUAL(mq_send(reader, "x", 1, 0), -1);
    EQUAL(mq_send(both, "fifth", 5, 2), 0);
    EQUAL(mq_send(both, "sixth", 5, 2), -1);
    receives(reader, "high", 30000);
    receives(copy, "high too", 30000);
    receives(both, "fifth", 2);
    receives(reader, "low", 1);
    receives(reader, "", 1);
    EQUAL(mq_receive(both, (char[200]){0}, 200, 0), -1);
    receives(gone, "in the other", 0);
    mqd_t again = mq_open(name, O_RDWR | O_NONBLOCK);
    EXPECT(again != -1);
    EQUAL(mq_send(again, "by name", 7, 0), 0);
    receives(reader, "by name", 0);
    struct stat status;
    EQUAL(fstat(reader, &status), 0);
    EQUAL(status.st_mode & 0777, 0640);
    EQUAL(mq_unlink(name), 0);
    return finish();
}
