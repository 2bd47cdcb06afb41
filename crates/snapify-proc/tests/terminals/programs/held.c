// A pseudo-terminal whose name is told.
#include "../../kinds/programs/check.h"
#include <pty.h>

int main(void) {
    int master, side;
    char name[64];
    EQUAL(openpty(&master, &side, name, NULL, NULL), 0);
    printf("ready\n%s\n", name);
    fflush(stdout);
    char line[64];
    EXPECT(read(0, line, sizeof line) > 0);
    EXPECT(isatty(side));
    return finish();
}
