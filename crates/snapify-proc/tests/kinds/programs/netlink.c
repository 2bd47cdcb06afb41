// Netlink sockets in which nothing waits.
#include "check.h"
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <sys/socket.h>

static int ask_links(int fd) {
    struct { struct nlmsghdr header; struct rtgenmsg body; } ask = {
        {sizeof ask, RTM_GETLINK, NLM_F_REQUEST | NLM_F_DUMP, 1, 0}, {AF_UNSPEC}};
    static char answer[65536];
    EQUAL(send(fd, &ask, sizeof ask, 0), sizeof ask);
    for (;;) {
        ssize_t length = recv(fd, answer, sizeof answer, 0);
        EXPECT(length > 0);
        struct nlmsghdr *message = (void *)answer;
        if (message->nlmsg_type == NLMSG_DONE || length <= 0) return message->nlmsg_type;
    }
}

int main(void) {
    int plain = socket(AF_NETLINK, SOCK_RAW, NETLINK_ROUTE), fresh = socket(AF_NETLINK, SOCK_DGRAM, NETLINK_GENERIC);
    EQUAL(ask_links(plain), NLMSG_DONE);
    struct sockaddr_nl before = {0}, after = {0};
    socklen_t length = sizeof before;
    EQUAL(getsockname(plain, (void *)&before, &length), 0);
    int events = socket(AF_NETLINK, SOCK_RAW | SOCK_NONBLOCK | SOCK_CLOEXEC, NETLINK_KOBJECT_UEVENT), on = 1;
    struct sockaddr_nl group = {.nl_family = AF_NETLINK, .nl_groups = 2};
    EQUAL(bind(events, (void *)&group, sizeof group), 0);
    EQUAL(setsockopt(plain, SOL_NETLINK, NETLINK_EXT_ACK, &on, sizeof on), 0);
    int size = 100000;
    EQUAL(setsockopt(events, SOL_SOCKET, SO_RCVBUF, &size, sizeof size), 0);

    pause_here();

    EQUAL(getsockname(plain, (void *)&after, &length), 0);
    EQUAL(after.nl_pid, before.nl_pid);
    EQUAL(ask_links(plain), NLMSG_DONE);
    int value = 0;
    length = sizeof value;
    EQUAL(getsockopt(plain, SOL_NETLINK, NETLINK_EXT_ACK, &value, &length), 0);
    EQUAL(value, 1);
    EQUAL(getsockopt(events, SOL_SOCKET, SO_RCVBUF, &value, &length), 0);
    EQUAL(value, 2 * size);
    length = sizeof after;
    EQUAL(getsockname(events, (void *)&after, &length), 0);
    EQUAL(after.nl_groups, 2);
    EQUAL(fcntl(events, F_GETFL), O_RDWR | O_NONBLOCK);
    EQUAL(fcntl(events, F_GETFD), FD_CLOEXEC);
    EQUAL(getsockname(fresh, (void *)&after, &length), 0);
    EQUAL(after.nl_pid, 0);
    return finish();
}
