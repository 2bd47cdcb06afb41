// Listens somewhere, and says where.
#include "inet.h"

int main(void) {
    int listener = listening("127.0.0.1", 1);
    union address at = own_address(listener);
    printf("ready\n%d\n", port_of(&at));
    fflush(stdout);
    char line[64];
    EXPECT(fgets(line, sizeof line, stdin) != NULL);
    int client = connected_to("127.0.0.1", listener);
    EXPECT(client >= 0 && accept(listener, NULL, NULL) >= 0);
    return finish();
}
