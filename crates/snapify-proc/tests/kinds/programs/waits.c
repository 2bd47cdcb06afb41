// Waits for standard input by epoll, but does not rely on it.
#include "check.h"

int main(void) {
    int epoll = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN};
    EQUAL(epoll_ctl(epoll, EPOLL_CTL_ADD, 0, &event), 0);
    pause_here();
    return finish();
}
